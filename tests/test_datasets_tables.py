"""Lists that users write: JSON lines, tables, folders, saved data sets; and how data is named."""

import json
import pickle
import subprocess
import sys

import pytest
from PIL import Image

from debias_sd.datasets.folder import read_folder, read_saved
from debias_sd.datasets.names import KINDS, open_records, split_name
from debias_sd.datasets.pictures import read_rgb, square
from debias_sd.datasets.records import Records, describe_counts
from debias_sd.datasets.row_files import read_jsonl, read_table


@pytest.fixture
def pictures(tmp_path):
    """A folder with 0.png to 3.png."""
    for number in range(4):
        Image.new("RGB", (30, 20), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def write_lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def captions(records):
    return [records[index].captions for index in range(len(records))]


def test_json_lines_with_short_captions_and_lists(pictures):
    rows = [
        {"image": "0.png", "caption": "A harbour.\n\nA  boat. é中", "caption_short": "A harbour."},
        {"image": "1.png", "caption": ["One.", " ", "Two."]},
        {"image": "2.png", "caption": ""},
        {"image": "gone.png", "caption": "x"},
        {"image": None, "caption": "x"},
        {"image": "3.png", "caption": None},
    ]
    path = write_lines(pictures / "list.jsonl", rows)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\n\n", 1))
    records = read_jsonl(path)
    assert isinstance(records, Records)
    assert captions(records) == [("A harbour. A boat. é中",), ("One.", "Two.")]
    assert [records[index].short for index in range(2)] == ["A harbour.", None]
    assert records.left_out == {"no caption": 2, "missing picture": 2}
    assert square(read_rgb(records[1].image), size=8)[0, 0].tolist() == [1, 0, 0]
    assert describe_counts(records.left_out) == "2 missing picture, 2 no caption"
    unasked = read_jsonl(path, skip_missing=False)
    assert (len(unasked), unasked[2].image) == (3, pictures / "gone.png")


def test_a_reader_travels_to_a_worker_and_pictures_may_lie_elsewhere(pictures, tmp_path_factory):
    path = write_lines(pictures / "list.jsonl", [{"file_name": f"{n}.png", "text": f"Text {n}."} for n in range(200)])
    records = read_jsonl(path, skip_missing=False)
    assert records[199].captions == ("Text 199.",)
    content = pickle.dumps(records)
    assert len(content) < 4000
    assert captions(pickle.loads(content)) == captions(records)
    path = write_lines(tmp_path_factory.mktemp("lists") / "a.jsonl", [{"file_name": "1.png", "text": "x"}])
    assert len(read_jsonl(path)) == 0
    assert read_jsonl(path, image_root=pictures)[0].image == pictures / "1.png"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1 of .* is not JSON; write one object per line.$"),
        ("[1]", "line 1 of .* is not a JSON object"),
        ('{"text": "a"}', "line 1 of .* lacks file_name or text but has text; write both"),
        ('{"file_name": "0.png", "text": "a"}\n{"text": "b"}', "object 2 of .* lacks file_name or text; write both"),
        ('{"file_name": "0.png", "text": "a"}\n\n{"text', "line 3 of .* is not JSON"),
        (b"\xff\xfe\x00", r"list.jsonl is not UTF-8 text .byte 2 cannot be read.; save it as UTF-8.$"),
    ],
)
def test_faulty_lines_are_named(tmp_path, content, message):
    (tmp_path / "list.jsonl").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        read_jsonl(tmp_path / "list.jsonl")


def test_columns_can_be_named_and_are_guessed_by_length(pictures):
    header = "filepath\ttitle\tsummary\tdescription\n"
    path = pictures / "debias.tsv"
    path.write_text(header + "0.png\tA title\tA harbour.\tA harbour. A red boat lies at the pier.\n")
    records = open_records(f"tsv:{path}")
    assert captions(records) == [("A harbour. A red boat lies at the pier.",)]
    assert captions(open_records(str(path), caption_column="summary")) == [("A harbour.",)]
    assert open_records(str(path), short_caption_column="summary")[0].short == "A harbour."
    with pytest.raises(ValueError, match="has no column 'sumary' but has .*; the nearest is 'summary'.$"):
        open_records(str(path), caption_column="sumary")
    with pytest.raises(ValueError, match="image_column is set but data of the kind coco has fixed names"):
        open_records(f"coco:{pictures}", image_column="x")


@pytest.mark.parametrize("separator", ["\t", ",", ";", "|"])
def test_tables_with_quotes_line_breaks_and_any_separator(pictures, separator):
    text = f'"A ""red"" boat{separator} a pier.\nA gull\u2028é."'
    rows = [
        "filepath" + separator + "title",
        f"0.png{separator}{text}",
        "",
        f"1.png{separator}Two.",
        f"9.png{separator}x",
    ]
    path = pictures / "table.csv"
    path.write_bytes("\r\n".join([*rows, f"2.png{separator}"]).encode())
    records = read_table(path)
    assert captions(records) == [(" ".join(f'A "red" boat{separator} a pier. A gull é.'.split()),), ("Two.",)]
    assert records.left_out == {"missing picture": 1, "no caption": 1}
    assert captions(pickle.loads(pickle.dumps(records))) == captions(records)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no heading; write the names of the columns"),
        ("a,b\n0.png,x\n", "lacks file_name or text but has a, b; write both, or name the columns with image_column"),
        ("filepath,title\n0.png,x,y\n", "the row that ends in line 2 of .* has 3 fields but the heading has 2"),
        (b"filepath,ti\xfftle\n0.png,x\n", r"t.csv is not UTF-8 text .byte 11 cannot be read.; save it as UTF-8.$"),
        ("filepath,title,title\n0.png,x,y\n", "table .*t.csv has 2 columns named 'title'; rename one.$"),
    ],
)
def test_faulty_tables_are_named(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message):
        read_table(tmp_path / "t.csv")


def test_folders_with_metadata_or_texts_beside_the_pictures(pictures):
    (pictures / "sub").mkdir()
    (pictures / "0.png").rename(pictures / "sub" / "0.png")
    for name, text in {"sub/0": "Zero.\nMore.", "1": "One.", "2": "", "7": "no picture"}.items():
        (pictures / f"{name}.txt").write_text(text)
    records = open_records(str(pictures))
    assert [(records[i].key, records[i].captions) for i in range(2)] == [
        ("1.png", ("One.",)),
        ("sub/0.png", ("Zero. More.",)),
    ]
    assert records.left_out == {"no caption": 2, "missing picture": 1}
    write_lines(pictures / "metadata.jsonl", [{"file_name": "3.png", "text": "From metadata."}])
    assert captions(open_records(f"folder:{pictures}")) == [("From metadata.",)]
    (pictures / "metadata.jsonl").unlink()
    (pictures / "metadata.csv").write_text("file_name,text\n1.png,From a table.\n")
    assert captions(open_records(str(pictures))) == [("From a table.",)]
    (pictures / "empty").mkdir()
    with pytest.raises(ValueError, match=r"has no metadata.jsonl and no picture with a text of the same name"):
        read_folder(pictures / "empty")


def test_names_are_kind_and_path(tmp_path):
    assert split_name(f"urban1k:{tmp_path}") == ("urban1k", str(tmp_path))
    assert split_name("LONG-DCI:x") == ("long-dci", "x")
    odd = tmp_path / "coco:1.jsonl"
    odd.write_text("{}")
    assert split_name(str(odd)) == ("jsonl", str(odd))
    with pytest.raises(ValueError, match="^unknown kind of data 'shargpt4v'; the nearest is 'sharegpt4v', all are "):
        split_name("shargpt4v:x.json")
    with pytest.raises(ValueError, match="'coco:' names no path; write coco:PATH."):
        split_name("coco:")
    with pytest.raises(ValueError, match="nowhere.tsv does not exist; name a file or folder of pictures with captions"):
        split_name("nowhere.tsv")


SNIFFED = {
    "a.tsv": "tsv", "a.csv": "csv", "a.jsonl": "jsonl", "a.ndjson": "jsonl", "docci_descriptions.jsonlines": "docci",
    "captions_val2017.json": "coco", "dataset_flickr30k.json": "flickr30k", "results_20130124.token": "flickr30k",
    "u/caption/1.txt": "urban1k", "d/annotations/a-data.json": "dci", "o/docci_descriptions.jsonlines": "docci",
    "c/annotations/captions_val2017.json": "coco", "f/dataset_flickr30k.json": "flickr30k", "s/0.tar": "shards",
    "h/dataset_info.json": "datasets", "m/metadata.jsonl": "folder", "p/1.jpg": "folder", "s/1.tar": "shards",
}  # fmt: skip


def test_a_paths_kind_is_found_out(tmp_path):
    for name in SNIFFED:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    for name, kind in SNIFFED.items():
        path = tmp_path / (name.split("/")[0])
        assert split_name(str(path)) == (kind, str(path)), name
    (tmp_path / "long.json").write_text(' [{"id": 1, "image": "a", "conversations": []}]')
    (tmp_path / "lines.json").write_text('{"file_name": "a"}\n{"file_name": "b"}')
    assert [split_name(str(tmp_path / f"{n}.json"))[0] for n in ("long", "lines")] == ["llava", "jsonl"]
    (tmp_path / "long.json").rename(tmp_path / "share-captioner_1107.json")
    assert split_name(str(tmp_path / "share-captioner_1107.json"))[0] == "sharegpt4v"
    assert split_name("x-{000..123}.tar")[0] == split_name("x-*.tar")[0] == "shards"
    assert {kind for kind in SNIFFED.values()} < set(KINDS)


def test_reading_needs_no_torch_and_a_table_of_nothing_but_its_heading_is_empty(tmp_path):
    code = "import sys, debias_sd.datasets.names, debias_sd.datasets.pictures; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
    (tmp_path / "t.tsv").write_text("filepath\ttitle\n")
    assert len(read_table(tmp_path / "t.tsv")) == 0


def test_without_the_library_a_saved_data_set_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        ValueError,
        match="^.* needs Hugging Face's datasets, which is not installed; install it: pip install datasets.$",
    ):
        open_records(f"datasets:{tmp_path}")


def test_a_saved_data_set_is_read_undecoded(pictures):
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    content = {"image": [str(pictures / f"{n}.png") for n in range(3)], "text": ["Zero.", "", "Two."]}
    rows = datasets.Dataset.from_dict(content).cast_column("image", datasets.Image())
    datasets.DatasetDict({"train": rows}).save_to_disk(str(pictures / "saved"))
    records = read_saved(pictures / "saved")
    assert captions(records) == [("Zero.",), ("Two.",)]
    assert records.left_out == {"no caption": 1}
    assert square(read_rgb(records[1].image), size=8)[0, 0].tolist() == [2, 0, 0]
    with pytest.raises(ValueError, match=r"is not a folder of datasets.save_to_disk"):
        read_saved(pictures)
