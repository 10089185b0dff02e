"""WebDataset shards, addressed by number through an index."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from PIL import Image

from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import read_rgb, square
from debias_sd.datasets.shards import find_shards, read_shards


def picture(number):
    stream = io.BytesIO()
    Image.new("RGB", (8, 8), (number, 0, 0)).save(stream, "PNG")
    return stream.getvalue()


def write_shard(path, members, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path):
    long_name = "a" * 150  # needs a header of its own
    write_shard(
        tmp_path / "world-000.tar",
        {
            "000.png": picture(0), "000.txt": "Zero.\nMore.",
            "001.txt": "One.", "001.png": picture(1), "001.json": '{"caption": "not this"}',
            "002.png": picture(2), "002.json": json.dumps({"caption": ["Two.", "Also."], "caption_short": "2"}),
            "003.png": picture(3), "003.cls": "1",
            "004.txt": "no picture",
        },
    )  # fmt: skip
    write_shard(
        tmp_path / "world-001.tar",
        {f"{long_name}.png": picture(5), f"{long_name}.txt": "Five é.", "d/6.PNG": picture(6), "d/6.txt": "", "x": "y"},
    )
    return tmp_path


def test_samples_are_pictures_with_text_or_json(shards):
    records = open_records(f"shards:{shards}/world-{{000..001}}.tar")
    assert [records[i].captions for i in range(4)] == [("Zero. More.",), ("One.",), ("Two.", "Also."), ("Five é.",)]
    assert [records[i].short for i in range(4)] == [None, None, "2", None]
    assert [square(read_rgb(records[i].image), size=4)[0, 0, 0] for i in range(4)] == [0, 1, 2, 5]
    assert [records[i].key for i in range(3)] == [f"world-000.tar:00{i}" for i in range(3)]
    assert records.left_out == {"no caption": 2, "missing picture": 1}
    assert records.blocks.tolist() == [3, 1]


def test_the_index_is_mapped_and_follows_its_shards(shards, monkeypatch):
    records = read_shards(shards)
    assert isinstance(records._index, np.memmap)
    monkeypatch.setattr("debias_sd.datasets.shards._samples", lambda path: pytest.fail("scanned again"))
    assert read_shards(shards)[3] == records[3]
    monkeypatch.undo()
    copy = pickle.loads(pickle.dumps(records))
    assert [copy[i] for i in range(4)] == [records[i] for i in range(4)]
    write_shard(shards / "world-001.tar", {"7.png": picture(7), "7.txt": "Seven.", "8.png": picture(8), "8.txt": "8."})
    assert [len(read_shards(shards)), *read_shards(shards)[3].captions] == [5, "Seven."]


def test_shards_are_named_by_folder_glob_or_range(shards):
    both = [shards / "world-000.tar", shards / "world-001.tar"]
    for pattern in ("", "/*.tar", "/world-*.tar", "/world-{000..001}.tar"):
        assert find_shards(f"{shards}{pattern}") == both
    assert find_shards(f"{shards}/world-00{{1..1}}.tar") == both[1:]
    with pytest.raises(ValueError, match=r"shard .*world-002.tar does not exist"):
        find_shards(f"{shards}/world-{{000..002}}.tar")
    with pytest.raises(ValueError, match=r"shard .*/none-\*.tar does not exist; correct the pattern or copy it."):
        find_shards(f"{shards}/none-*.tar")


def test_compressed_and_damaged_shards_are_named(shards):
    write_shard(shards / "z.tar", {"1.png": picture(1), "1.txt": "x"}, mode="w:gz")
    with pytest.raises(
        ValueError, match=r"shard .*z.tar is not a complete, uncompressed tar archive .*; unpack it if it is compressed"
    ):
        read_shards(shards / "z.tar")
    content = (shards / "world-000.tar").read_bytes()
    (shards / "z.tar").write_bytes(content[: len(content) // 3])
    with pytest.raises(ValueError, match=r"shard .*z.tar is not a complete, uncompressed tar archive"):
        read_shards(shards / "z.tar")


def test_names_in_json_can_be_given(shards):
    write_shard(shards / "j.tar", {"1.png": picture(1), "1.json": '{"long": "A. B.", "brief": "A."}'})
    record = open_records(str(shards / "j.tar"), caption_column="long", short_caption_column="brief")[0]
    assert (record.captions, record.short) == (("A. B.",), "A.")
    with pytest.raises(ValueError, match="image_column is set but data of the kind shards has fixed names"):
        open_records(str(shards / "j.tar"), image_column="jpg")


def test_json_without_a_caption_is_left_out(shards):
    members = {"1.png": picture(1), "1.json": "{", "2.png": picture(1), "2.json": "[1]", "3.png": picture(1)}
    write_shard(shards / "j.tar", members | {"3.json": '{"caption": " "}'})
    records = read_shards(shards / "j.tar")
    assert (len(records), records.left_out) == (0, {"broken record": 2, "no caption": 1})
