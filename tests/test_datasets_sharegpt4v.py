"""ShareGPT4V's list of 1.2 M records: scanned once, indexed, read from its place."""

import json
import os
import pickle

import numpy as np
import pytest
from PIL import Image

from debias_sd.datasets import large_files
from debias_sd.datasets.large_files import scan_json
from debias_sd.datasets.names import open_records
from debias_sd.datasets.records import Pool
from debias_sd.datasets.sharegpt4v import read_sharegpt4v


def record(image, caption):
    asked = {"from": "human", "value": "<image>\nDescribe this image in detail."}
    return {"id": "1", "image": image, "conversations": [asked, {"from": "gpt", "value": caption}]}


def write_set(folder, records, **options):
    path = folder / "share-captioner_coco_lcs_sam_1246k_1107.json"
    path.write_text(json.dumps(records, **options), encoding="utf-8")
    return path


FOLDERS = ("sam/images", "coco/train2017", "llava/llava_pretrain/images/00000")


@pytest.fixture
def small(tmp_path):
    """1,030 records, of which 1,000 to 1,029 train; two of these have no caption, one is broken, some no picture."""
    records = [record(f"{FOLDERS[n % 3]}/{n}.jpg", f'Picture {n}.\n\nIt\'s "é" \\ {{[中]}}.') for n in range(1030)]
    records[1003] = record("coco/train2017/1003.jpg", " \n")
    records[1004] = {"id": "x", "image": "sam/images/1004.jpg", "conversations": [{"from": "human", "value": "?"}]}
    records[1005] = {"id": "x", "conversations": "none"}
    for n in (1000, 1001, 1006, 1028, 1029, 5):
        path = tmp_path / records[n]["image"]
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(path)
    return write_set(tmp_path, records)


@pytest.mark.parametrize("options", [{}, {"indent": 1}, {"ensure_ascii": False}, {"separators": (",", ":")}])
@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_a_list_is_scanned_in_pieces_of_any_size(tmp_path, options, chunk):
    values = [
        {"a": 'x"]},[{\\', "b": [1, {"c": "é中"}]},
        12,
        "s,]",
        None,
        [],
        {},
        3.25,
        {"}": "}" * 9},
        {"t": "w" * 200},
    ]
    path = write_set(tmp_path, values, **options)
    content = path.read_bytes()
    found = list(scan_json(path, chunk=chunk))
    assert [json.loads(content[start : start + size]) for start, size, _, _ in found] == values


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is not a JSON list or object"),
        ("12", "is not a JSON list or object"),
        ('{"a": 1', "ends within its list, after 0 records; copy it again."),
        ('{"a": 1]', "is not JSON near byte 7, after 0 records; copy it again."),
        ('[{"a": 1}}', "is not JSON near byte 9, after 0 records; copy it again."),
        ("[" * 100_000, "is not JSON near byte 1, after 0 records; copy it again."),
        ("[" + "1" * 5000 + "]", "is not JSON near byte 1, after 0 records; copy it again."),
        ("[", "ends within its list, after 0 records; copy it again."),
        ('[{"a": 1}, {"b": "tex', "ends within its list, after 1 record; copy it again."),
        ('[{"a": 1},', "ends within its list, after "),
        ('[{"a": 1} {"b": 2}]', "is not JSON near byte 9, after 0 records; copy it again."),
        ('[{"a": 1}, {"b": }]', "is not JSON near byte 17, after 1 record; copy it again."),
    ],
)
def test_a_damaged_list_is_named_with_its_place(tmp_path, content, message):
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        list(scan_json(tmp_path / "a.json", chunk=4))


def test_the_first_thousand_are_held_out(small):
    train, held_out = open_records(f"sharegpt4v:{small}"), open_records(f"sharegpt4v-1k:{small}", skip_missing=False)
    assert (len(train), len(held_out)) == (27, 1000)
    assert train.left_out == {"held out": 1000, "no caption": 2, "broken record": 1}
    assert len(open_records(f"llava:{small}", skip_missing=False)) == 1027
    assert train[0].captions == ('Picture 1000. It\'s "é" \\ {[中]}.',)
    assert train[3].key == "coco/train2017/1006.jpg"
    assert train[0].image == small.parent / "coco/train2017/1000.jpg"
    assert held_out[999].captions[0].startswith("Picture 999. ")
    assert held_out.expected == Pool(1000, 1000)
    assert train.expected is None
    assert len(open_records(f"sharegpt4v-1k:{small}")) == 1  # an evaluation leaves out what is not there, and says so


def test_missing_pictures_are_counted_by_where_they_come_from(small):
    records = open_records(str(small), skip_missing=True)
    assert [records[index].key.rpartition("/")[2] for index in range(len(records))] == [
        "1000.jpg", "1001.jpg", "1006.jpg", "1028.jpg", "1029.jpg",
    ]  # fmt: skip
    counts = {"missing picture of sam": 8, "missing picture of coco": 7, "missing picture of llava": 7}
    assert sum(counts.values()) == 30 - 3 - 5
    assert records.left_out == {"held out": 1000, "no caption": 2, "broken record": 1} | counts
    elsewhere = read_sharegpt4v(small, skip_missing=True, image_root=small.parent / "nowhere")
    assert len(elsewhere) == 0


def test_the_answer_about_missing_pictures_follows_the_folders(small, monkeypatch):
    assert len(read_sharegpt4v(small, skip_missing=True)) == 5
    listed = []
    monkeypatch.setattr(os, "listdir", lambda folder, real=os.listdir: listed.append(folder) or real(folder))
    assert len(read_sharegpt4v(small, skip_missing=True)) == 5
    assert listed == []
    (small.parent / "sam/images/1002.jpg").unlink(missing_ok=True)
    (small.parent / "sam/images/1008.jpg").touch()
    (small.parent / "sam/images/1011.jpg").touch()
    names = {n: FOLDERS[n % 3] for n in (1008, 1011)}
    expected = 5 + sum(folder == "sam/images" for folder in names.values())
    assert len(read_sharegpt4v(small, skip_missing=True)) == expected
    assert listed


def test_the_list_is_scanned_once_until_it_changes(small, monkeypatch):
    first = read_sharegpt4v(small)
    (found,) = small.with_name(small.name + ".index").glob("records-*.npy")
    assert isinstance(np.load(found, mmap_mode="r"), np.memmap)

    def refuse(path):
        raise AssertionError(f"{path} is scanned again")

    monkeypatch.setattr("debias_sd.datasets.sharegpt4v.scan_json", refuse)
    assert read_sharegpt4v(small)[5] == first[5]
    found.write_bytes(found.read_bytes()[:40])  # a damaged index is made again
    with pytest.raises(AssertionError, match="scanned again"):
        read_sharegpt4v(small)
    monkeypatch.undo()
    assert len(read_sharegpt4v(small)) == 27
    write_set(small.parent, [record("a/1.jpg", "x")] * 1001)
    assert len(read_sharegpt4v(small)) == 1
    assert len(list(found.parent.glob("records-*.npy"))) == 1


def test_the_index_goes_to_the_cache_or_to_memory_where_it_cannot_lie_beside(small, tmp_path, monkeypatch):
    small.with_name(small.name + ".index").write_text("a file is in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(read_sharegpt4v(small)) == 27
    assert list((tmp_path / "cache" / "debias_sd").glob("*.index/records-*.npy"))
    monkeypatch.setattr(large_files, "_save", lambda *_: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    records = read_sharegpt4v(small)
    assert pickle.loads(pickle.dumps(records))[26] == records[26]


def test_a_worker_gets_little_and_maps_the_index_itself(small):
    records = read_sharegpt4v(small)
    content = pickle.dumps(records)
    assert len(content) < 1500
    copy = pickle.loads(content)
    assert [copy[index] for index in range(27)] == [records[index] for index in range(27)]
    assert isinstance(copy._index, np.memmap)


def test_records_of_any_wrong_form_are_counted_not_raised(tmp_path):
    good = record("a/1.jpg", "x")
    wrong = [None, 1, [], {}, {"image": 3}, good | {"conversations": [1]}, good | {"image": "a/"}, record("a/1.jpg", 3)]
    path = write_set(tmp_path, [good] * 1000 + [good, *wrong, record("b.jpg", None)])
    records = read_sharegpt4v(path)
    assert (len(records), records.left_out) == (
        1,
        {"held out": 1000, "broken record": 7, "caption that is a number": 1, "no caption": 1},
    )


def test_names_that_are_not_ascii_are_found_and_empty_lists_are_lists(tmp_path):
    (tmp_path / "é").mkdir()
    (tmp_path / "é" / "中.jpg").touch()
    for escaped in (True, False):
        path = write_set(tmp_path, [record("x", "x")] * 1000 + [record("é/中.jpg", "x")], ensure_ascii=escaped)
        records = read_sharegpt4v(path, skip_missing=True)
        assert (len(records), records.left_out) == (1, {"held out": 1000}), escaped
        assert records[0].image.is_file()
    for content in ("[]", " [ ] \n"):
        (tmp_path / "a.json").write_text(content)
        assert list(scan_json(tmp_path / "a.json")) == []
