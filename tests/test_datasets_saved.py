"""Folders that Hugging Face's `datasets` itself wrote: pictures as bytes and paths, several files, splits, faults."""

import json
import pickle

import pytest
from PIL import Image

from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import PictureFault, read_rgb, square
from debias_sd.datasets.records import Encoded
from tests.train_tiny import arguments, tiny_settings, train_tiny
from train_encoder.__main__ import main

datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed: pip install datasets")
pytestmark = pytest.mark.usefixtures("fresh_accelerator")
FEATURES = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    datasets.disable_progress_bars()
    for number in range(6):
        Image.new("RGB", (40, 30), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def rows_of(images, texts, features=FEATURES):
    return datasets.Dataset.from_dict({"image": images, "text": texts}, features=features)


def reds_of(records):
    return [int(square(read_rgb(records[index].image), size=8)[0, 0, 0]) for index in range(len(records))]


TEXTS = [f"Picture {number}.\nMore." for number in range(6)]


def test_pictures_lie_in_one_file_or_several_as_paths_or_plain_bytes(pictures):
    rows = rows_of([str(pictures / f"{number}.png") for number in range(6)], TEXTS)
    rows.save_to_disk(str(pictures / "one"))
    rows.save_to_disk(str(pictures / "several"), num_shards=3)
    assert len(list((pictures / "several").glob("*.arrow"))) == 3
    for name in ("one", "several"):
        records = pickle.loads(pickle.dumps(open_records(str(pictures / name))))  # as a worker gets them
        assert reds_of(records) == [0, 20, 40, 60, 80, 100]
        assert isinstance(records[0].image, Encoded)
        assert (records[3].key, records[3].captions) == ("row 3 (3.png)", ("Picture 3. More.",))
    text = {"text": datasets.Value("string")}
    names = rows_of([f"{number}.png" for number in range(6)], TEXTS, datasets.Features({"image": text["text"]} | text))
    names.save_to_disk(str(pictures / "names"))
    records = open_records(f"datasets:{pictures / 'names'}", image_root=pictures)
    assert reds_of(records) == [0, 20, 40, 60, 80, 100]
    assert records[1].key == "1.png"
    content = [(pictures / f"{number}.png").read_bytes() for number in range(6)]
    plain = rows_of(content, TEXTS, datasets.Features({"image": datasets.Value("binary")} | text))
    plain.save_to_disk(str(pictures / "plain"))
    assert reds_of(open_records(str(pictures / "plain"))) == [0, 20, 40, 60, 80, 100]


def test_train_is_the_split_where_there_are_several_and_captions_are_columns(pictures):
    one, two = rows_of([str(pictures / "1.png")], ["One."]), rows_of([str(pictures / "2.png")], ["Two."])
    datasets.DatasetDict({"test": one, "train": two}).save_to_disk(str(pictures / "both"))
    assert open_records(str(pictures / "both"))[0].captions == ("Two.",)
    assert open_records(str(pictures / "both" / "test"))[0].captions == ("One.",)
    datasets.DatasetDict({"a": one, "b": two}).save_to_disk(str(pictures / "neither"))
    with pytest.raises(ValueError, match=r"^[^\n]* has the splits a, b; name the folder of one, as .*/NAME\.$"):
        open_records(str(pictures / "neither"))
    text = datasets.Value("string")
    features = datasets.Features({"img": datasets.Image(), "captions": datasets.List(text), "caption_short": text})
    values = {"img": [str(pictures / "1.png")] * 2, "captions": [["One.", "Two."], []], "caption_short": ["1", None]}
    datasets.Dataset.from_dict(values, features=features).save_to_disk(str(pictures / "set"))
    records = open_records(str(pictures / "set"))
    assert (records[0].captions, records[0].short) == (("One.", "Two."), "1")
    assert (len(records), records.left_out) == (1, {"no caption": 1})


def test_an_image_folder_goes_round_through_the_library(pictures):
    lines = [json.dumps({"file_name": f"{number}.png", "text": TEXTS[number]}) for number in range(6)]
    (pictures / "metadata.jsonl").write_text("\n".join(lines))
    loaded = datasets.load_dataset("imagefolder", data_dir=str(pictures), split="train")
    loaded.save_to_disk(str(pictures / "saved"))
    saved, folder = open_records(str(pictures / "saved")), open_records(str(pictures))
    assert sorted(reds_of(saved)) == reds_of(folder)
    assert {saved[n].captions for n in range(6)} == {folder[n].captions for n in range(6)}


def test_broken_rows_are_faults_of_their_kind_and_a_run_replaces_them(pictures, capsys):
    good = [{"bytes": (pictures / f"{number}.png").read_bytes(), "path": f"{number}.png"} for number in range(6)]
    gone = {"bytes": None, "path": "gone.png"}
    # The library writes no Image column whose picture is not there; a plain pair of bytes and path may lack it.
    pair = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"image": pair, "text": datasets.Value("string")})
    images, texts = [None, {"bytes": b"no", "path": None}, gone, *good], ["a", "b", "c", None, *TEXTS[1:]]
    rows_of(images, texts, features).save_to_disk(str(pictures / "set"))
    records, kinds = open_records(str(pictures / "set")), []
    for number in range(3):
        with pytest.raises(PictureFault) as caught:
            square(read_rgb(records[number].image), size=8)
        kinds.append(caught.value.kind)
    assert kinds == ["empty file", "not a picture", "missing picture"]
    assert (len(records), records.left_out) == (8, {"no caption": 1})
    base = train_tiny(pictures / "base", max_train_steps=2)
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "train_batch_size": 3}
    folder = train_tiny(pictures / "run", **settings, train_data=str(pictures / "set"), dataloader_num_workers=1)
    story = json.loads((folder / "provenance.json").read_text())["data"]
    assert (story["records"], story["skipped"]) == (8, {"no caption": 1})
    assert set(story["broken"]) <= {"empty file", "not a picture", "missing picture"}
    capsys.readouterr()
    assert main(arguments(tiny_settings(pictures / "none", **settings, train_data=f"datasets:{pictures}"))) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"train_encoder: {pictures} is not a folder of datasets")


def test_what_holds_no_pictures_is_one_sentence(pictures):
    lists = datasets.Features({"image": datasets.List(datasets.Image()), "text": datasets.Value("string")})
    rows_of([[str(pictures / "1.png")]], ["x"], lists).save_to_disk(str(pictures / "lists"))
    with pytest.raises(ValueError, match=r"^column image of data set .* holds List\(Image.*, one picture a row"):
        open_records(str(pictures / "lists"))
    rows_of([], []).save_to_disk(str(pictures / "empty"))
    with pytest.raises(ValueError, match=r"^[^\n]* is not a folder of datasets.save_to_disk, or is an empty one"):
        open_records(str(pictures / "empty"))
    rows_of([str(pictures / "1.png")] * 4, TEXTS[:4]).save_to_disk(str(pictures / "half"))
    file = next((pictures / "half").glob("*.arrow"))
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"^[^\n]* is not a folder of datasets.save_to_disk, or is an empty one"):
        open_records(str(pictures / "half"))
