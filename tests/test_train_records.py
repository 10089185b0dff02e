"""Records on disk as training data: what is left out, replaced, counted; orders; short captions of their own."""

import json
import tarfile

import numpy as np
import pytest
from PIL import Image

from debias_sd.preprocessing import clip_preprocessing
from tests.test_train_data import TEXT, make_batch
from tests.test_train_processes import SEVERAL, launch
from tests.train_tiny import arguments, tiny_config, tiny_settings, train_tiny
from train_encoder.__main__ import main
from train_encoder.data.pairs import GlobalBatches, open_pairs, order_by_blocks

NAMED = {"train_data": "x", "pretrained_model_name_or_path": "x"}


@pytest.fixture
def pictures(tmp_path):
    lines = []
    for number in range(7):
        Image.new("RGB", (40 + number, 30), (number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append({"file_name": f"{number}.png", "text": f"Picture {number}. It is  red."})
    lines += [{"file_name": "missing.png", "text": "x"}, {"file_name": "0.png", "text": " "}]
    (tmp_path / "metadata.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return tmp_path


def pairs_of(folder, data, *, batch=2, processes=1, size=24, **settings):
    settings |= {"train_data": str(data), "pretrained_model_name_or_path": "x", "train_batch_size": batch}
    return open_pairs(tiny_config(folder, **settings), clip_preprocessing(size), processes=processes)


def test_records_are_skipped_when_incomplete_and_seen_once_an_epoch(pictures):
    data = pairs_of(pictures, pictures)
    assert (len(data.records), data.usable) == (7, 6)
    assert data.records.left_out == {"missing picture": 1, "no caption": 1}
    epochs = [[data[number]["text"] for number in range(first, first + 6)] for first in (0, 6)]
    assert all(len(set(epoch)) == 6 for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert data[0]["image"].shape == (24, 24, 3)
    assert data[0]["text"].endswith("It is red.")
    assert pairs_of(pictures, f"folder:{pictures}")[3]["text"] == data[3]["text"]
    assert pairs_of(pictures, pictures / "metadata.jsonl")[3]["text"] == data[3]["text"]
    assert any(pairs_of(pictures, pictures, seed=1)[n]["text"] != data[n]["text"] for n in range(6))


def test_an_epochs_order_never_changes(pictures):
    # RandomState's own promise: whoever resumes with another NumPy sees the same batches.
    data = pairs_of(pictures, pictures)
    assert [data._order_of(epoch).tolist() for epoch in (0, 1)] == [[1, 3, 4, 6, 5, 2, 0], [2, 3, 1, 5, 4, 6, 0]]


def test_shards_are_mixed_a_few_at_a_time():
    blocks = np.array([3, 0, 5, 4, 2, 6])
    order = order_by_blocks(blocks, np.random.RandomState(0), together=2)
    assert sorted(order.tolist()) == list(range(20))
    block_of = np.repeat(np.arange(6), blocks)[order]
    sizes = blocks[np.random.RandomState(0).permutation(6)].reshape(3, 2).sum(1)
    parts = np.split(block_of, np.cumsum(sizes)[:-1])
    assert all(len(set(part.tolist())) <= 2 for part in parts)
    assert any((np.diff(part) < 0).any() for part in parts)


def test_shards_are_data_too(pictures):
    for shard in range(3):
        with tarfile.open(pictures / f"{shard}.tar", "w") as archive:
            for number in range(4):
                (pictures / "text").write_text(f"Picture {4 * shard + number}.")
                archive.add(pictures / f"{number}.png", f"{number}.png")
                archive.add(pictures / "text", f"{number}.txt")
    data = pairs_of(pictures, f"shards:{pictures}", batch=4)
    epochs = [[data[number]["text"] for number in range(first, first + 12)] for first in (0, 12)]
    assert [set(epoch) for epoch in epochs] == [{f"Picture {number}." for number in range(12)}] * 2
    assert epochs[0] != epochs[1]
    assert {data[number]["image"][0, 0, 0] for number in range(12)} == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "line 1 of .* is not JSON"), ('{"text": "a"}', "lacks file_name or text"), ("", "has 0 usable records")],
)
def test_faulty_files_are_named(tmp_path, content, message):
    path = tmp_path / "metadata.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        pairs_of(tmp_path, path)


def test_data_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="nowhere does not exist; name a file or folder of pictures with captions"):
        pairs_of(tmp_path, tmp_path / "nowhere")
    with pytest.raises(ValueError, match="unknown kind of data 'jsnl'; the nearest is 'jsonl'"):
        pairs_of(tmp_path, "jsnl:x")


@pytest.fixture
def shared(tmp_path):
    """200 records in ShareGPT4V's form, 5 of them broken in different ways."""
    records = []
    for number in range(200):
        name = f"coco/train2017/{number:012d}.jpg"
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / name, quality=95)
        turns = [
            {"from": "human", "value": "<image>\nDescribe."},
            {"from": "gpt", "value": f"Picture {number}.\nMore."},
        ]
        records.append({"id": str(number), "image": name, "conversations": turns})
    files = [tmp_path / records[number]["image"] for number in range(4)]
    files[0].write_bytes(files[0].read_bytes()[:-200])
    files[1].write_bytes(b"")
    files[2].write_text("no picture")
    files[3].unlink()
    records[4]["conversations"][1]["value"] = " "
    path = tmp_path / "share.json"
    path.write_text(json.dumps(records))
    return path


BROKEN = {0: "truncated picture", 1: "empty file", 2: "not a picture", 3: "missing picture"}


def test_broken_records_are_replaced_alike_whatever_the_number_of_processes(shared):
    settings = {"skip_missing_images": False, "dataloader_num_workers": 0}
    alone = pairs_of(shared.parent, shared, batch=50, **settings)
    assert (len(alone.records), alone.records.left_out, alone.usable) == (199, {"no caption": 1}, 150)
    items = [alone[number] for number in range(300)]
    several = pairs_of(shared.parent, shared, batch=25, processes=2, **settings)
    for rank in (0, 1):
        for batch in GlobalBatches(25, rank=rank, processes=2, start=2, total=6):
            for number in batch:
                assert several[number]["text"] == items[number]["text"]
                assert several[number]["faults"] == items[number]["faults"]
    faults = {(key, kind) for item in items for _, key, kind in item["faults"]}
    assert faults == {(f"coco/train2017/{number:012d}.jpg", kind) for number, kind in BROKEN.items()}
    assert all(item["text"] and item["image"].any() for item in items if item["text"] != "Picture 0. More.")
    for first in range(0, 300, 50):
        texts = [item["text"] for item in items[first : first + 50]]
        assert len(set(texts)) == 50, "a batch has a picture twice"


def test_missing_pictures_are_left_out_when_asked(shared):
    records = pairs_of(shared.parent, shared, skip_missing_images=True).records
    assert (len(records), records.left_out) == (198, {"no caption": 1, "missing picture of coco": 1})


def test_an_item_stops_looking_behind_the_limit(shared):
    for number in range(200):
        (shared.parent / f"coco/train2017/{number:012d}.jpg").write_bytes(b"")
    data = pairs_of(shared.parent, shared, data_fault_limit=3)
    assert [kind for _, _, kind in data[0]["faults"]] == ["empty file"] * 4
    everything = pairs_of(shared.parent, shared, data_fault_limit=100_000)
    assert everything.fault_limit == 198
    assert len({number for number, _, _ in everything[0]["faults"]}) == 199


@pytest.mark.usefixtures("one_thread")
def test_a_run_over_broken_records_counts_them_resumes_and_stops_at_the_limit(base, shared, tmp_path, capsys):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "train_data": str(shared)}
    settings |= {"skip_missing_images": False, "train_batch_size": 48, "max_train_steps": 8, "checkpointing_steps": 4}
    settings |= {"checkpoints_total_limit": 5}
    whole = train_tiny(tmp_path / "whole", **settings)
    said = capsys.readouterr().out
    assert "199 pairs, 1 skipped (1 no caption)" in said
    assert (
        "4 broken records were replaced (1 empty file, 1 missing picture, 1 not a picture, 1 truncated picture)" in said
    )
    story = json.loads((whole / "provenance.json").read_text())
    assert story["data"] == {"records": 199, "skipped": {"no caption": 1}, "broken": dict.fromkeys(BROKEN.values(), 1)}
    rows = [json.loads(line) for line in (whole / "train_log.jsonl").read_text().splitlines()]
    assert sum(row.get("replaced", 0) for row in rows) >= 7  # two epochs, of which each leaves 7 records out
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    (whole / "checkpoint-4").rename(resumed / "checkpoint-4")
    train_tiny(resumed, **settings, resume_from_checkpoint="latest")
    assert (resumed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert json.loads((resumed / "provenance.json").read_text())["data"] == story["data"]
    capsys.readouterr()
    assert main(arguments(tiny_settings(tmp_path / "limit", **settings, data_fault_limit=2))) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(
        "train_encoder: 4 records cannot be used (1 empty file, 1 missing picture, 1 not a picture, "
    )
    assert "data_fault_limit is 2: coco/train2017/00000000000" in error
    assert not (tmp_path / "limit" / "model.safetensors").exists()


@pytest.mark.slow
def test_two_processes_count_and_stop_as_one(base, shared, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "train_data": str(shared)}
    settings |= {"skip_missing_images": False, "max_train_steps": 4}
    alone = ["--num_processes", "1", "--num_machines", "1"]
    one = launch(alone, tiny_settings(tmp_path / "one", **settings | {"train_batch_size": 48}), 29616)
    two = launch(SEVERAL, tiny_settings(tmp_path / "two", **settings | {"train_batch_size": 24}), 29617)
    assert (one.returncode, two.returncode) == (0, 0), one.stderr + two.stderr
    logs = [(tmp_path / name / "train_log.jsonl").read_text().splitlines() for name in ("one", "two")]
    counts = [[json.loads(line).get("replaced", 0) for line in lines] for lines in logs]
    assert counts[0] == counts[1]
    assert sum(counts[0]) >= 3
    data = [json.loads((tmp_path / name / "provenance.json").read_text())["data"] for name in ("one", "two")]
    assert data[0] == data[1]
    limited = settings | {"train_batch_size": 24, "data_fault_limit": 0}
    stopped = launch(SEVERAL, tiny_settings(tmp_path / "three", **limited), 29618)
    assert stopped.returncode != 0
    assert "data_fault_limit is 0: coco/train2017/" in stopped.stderr
    assert not (tmp_path / "three" / "model.safetensors").exists()


def test_a_short_caption_of_its_own_replaces_the_recipes(pictures):
    lines = [{"image": f"{n}.png", "caption": TEXT, "caption_short": "Its own." if n else None} for n in range(4)]
    path = pictures / "short.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    shorts = {}
    for settings in ({}, {"short_caption_column": "caption_short"}):
        data = pairs_of(pictures, path, recipe="long-clip", **settings)
        tokenizer, batch = make_batch(pictures, data, range(4), recipe="long-clip", **settings, **NAMED)
        ends = (batch["short_ids"] == tokenizer.eos_token_id).int().argmax(1).tolist()
        shorts[bool(settings)] = sorted(ends)
        assert batch["faults"] == []
    own, first = (len(tokenizer(text)["input_ids"]) - 1 for text in ("Its own.", "A summary of all."))
    assert shorts == {False: [first] * 4, True: sorted([own] * 3 + [first])}


def test_one_of_several_captions_is_drawn_by_the_samples_number(pictures):
    path = pictures / "several.jsonl"
    path.write_text("\n".join(json.dumps({"image": f"{n}.png", "caption": ["One.", "Two."]}) for n in range(4)))
    data = pairs_of(pictures, path)
    texts = [data[number]["text"] for number in range(40)]
    assert texts == [data[number]["text"] for number in range(40)]
    assert set(texts) == {"One.", "Two."}
