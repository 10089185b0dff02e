"""Text as Windows, spreadsheets and old Macs write it, through every reader; what is not text, with its byte."""

import codecs
import json

import pytest
from PIL import Image

from debias_sd.commands.arguments import read_prompt
from debias_sd.datasets.listing import load_json
from debias_sd.datasets.names import open_records
from debias_sd.measure.judges.known import read_known
from debias_sd.measure.retrieval import make_pool
from debias_sd.prompts.files import read_prompt_file
from debias_sd.text import NotText, decode_text, read_lines, read_text
from tests.test_datasets_shards import picture, write_shard
from tests.test_train_records import pairs_of

ENCODINGS = {
    "utf-8": b"", "utf-8-sig": b"", "utf-16-le": codecs.BOM_UTF16_LE, "utf-16-be": codecs.BOM_UTF16_BE,
    "utf-32-le": codecs.BOM_UTF32_LE, "utf-32-be": codecs.BOM_UTF32_BE,
}  # fmt: skip
TEXTS = ["Füße im 中, 🌟.", "Two."]


@pytest.fixture
def pictures(tmp_path):
    for number in range(4):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def captions(records):
    return [records[number].captions for number in range(len(records))]


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_reader_takes_marks_other_encodings_and_line_breaks(pictures, encoding, breaks):
    """Case 104: no byte-order mark becomes a part of a caption, a column or a prompt."""

    def write(name, text):
        path = pictures / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(ENCODINGS[encoding] + text.replace("\n", breaks).encode(encoding))
        return path

    rows = [{"image": f"{number}.png", "caption": text} for number, text in enumerate(TEXTS)]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    said = [{"image": r["image"], "conversations": [{"from": "gpt", "value": r["caption"]}]} for r in rows]
    table = "image\tcaption\n" + "".join(f"{row['image']}\t{row['caption']}\n" for row in rows)
    files = {
        "a.csv": "image,caption\n" + "".join(f'{row["image"]},"{row["caption"]}"\n' for row in rows),
        "a.tsv": table,
        "b.txt": table,
        "a.jsonl": lines,
        "lines.json": lines,
        "list.json": json.dumps(rows, ensure_ascii=False, indent=1),
        "by_file.json": json.dumps({row["image"]: [row["caption"]] for row in rows}, ensure_ascii=False),
        "said.json": json.dumps(said, ensure_ascii=False),
    }
    for name, text in files.items():
        records = open_records(str(write(name, text)))
        assert captions(records) == [(text,) for text in TEXTS], name
        assert [records[number].key for number in range(2)] == ["0.png", "1.png"]
        assert records.left_out == {}
    write_shard(pictures / "a.tar", {"0.png": picture(0), "0.txt": write("x", TEXTS[0] + "\n").read_bytes()})
    assert captions(open_records(str(pictures / "a.tar"))) == [(TEXTS[0],)]
    for name in ("caption/1.txt", "image/1.txt"):
        write(name, TEXTS[0] + "\nSecond line.")
    Image.new("RGB", (8, 8)).save(pictures / "image" / "1.jpg")
    assert captions(open_records(f"urban1k:{pictures}")) == [(TEXTS[0],)]
    assert captions(open_records(str(pictures / "image"))) == [(f"{TEXTS[0]} Second line.",)]
    assert read_prompt_file(write("p.txt", "\n".join(TEXTS))).texts == TEXTS
    assert read_prompt_file(pictures / "a.jsonl").texts == TEXTS
    assert load_json(pictures / "list.json", kind=list, what="x") == rows
    known = [{"image": f"{number}.png", "true": ["A."], "false": ["B."]} for number in range(4)]
    assert len(read_known(write("known.jsonl", "\n".join(map(json.dumps, known)))).pictures) == 4


def test_what_is_not_utf8_is_a_counted_fault_with_file_and_byte(pictures):
    """Case 104: cp1252, UTF-16 without a mark and NUL bytes are no captions; the rest of the file is read."""
    bad = "Füße".encode("cp1252")
    (pictures / "a.csv").write_bytes(b"image,caption\n0.png,Good.\n1.png," + bad + b"\n2.png,\0\n3.png,Good.\n")
    (pictures / "a.jsonl").write_bytes(
        b'{"image": "0.png", "caption": "' + bad + b'"}\n{"image": "3.png", "caption": "Good."}\n'
    )
    (pictures / "a.json").write_bytes(
        b'[{"image": "0.png", "caption": "' + bad + b'"}, {"image": "3.png", "caption": "Good."}]'
    )
    turns = b'"conversations": [{"from": "gpt", "value": '
    (pictures / "said.json").write_bytes(
        b'[{"image": "0.png", ' + turns + b'"' + bad + b'"}]}, {"image": "3.png", ' + turns + b'"Good."}]}]'
    )
    write_shard(pictures / "a.tar", {"0.png": picture(0), "0.txt": bad, "3.png": picture(3), "3.txt": "Good."})
    for name in ("a.csv", "a.jsonl", "a.json", "said.json", "a.tar"):
        count, good = (2, [("Good.",)] * 2) if name == "a.csv" else (1, [("Good.",)])
        byte = (pictures / name).read_bytes().index(b"\xfc")
        place = "byte 1 of a.tar:0.txt" if name == "a.tar" else f"byte {byte} of {name}"
        records = open_records(str(pictures / name))
        assert (records.left_out, captions(records)) == ({f"not UTF-8 text (first: {place})": count}, good), name
        assert pairs_of(pictures, pictures / name, batch=1)[0]["text"] == "Good."  # what the trainer reads
    (pictures / "0.txt").write_bytes(bad)
    (pictures / "1.txt").write_text("Good.")
    folder = open_records(f"folder:{pictures}")
    assert (captions(folder), folder.left_out["not UTF-8 text (first: byte 1 of 0.txt)"]) == ([("Good.",)], 1)
    (pictures / "utf16.jsonl").write_bytes((pictures / "a.jsonl").read_bytes().decode("cp1252").encode("utf-16-le"))
    with pytest.raises(ValueError, match=r"has 0 usable records \(3 not UTF-8 text \(first: byte 1 of utf16.jsonl\)\)"):
        open_records(str(pictures / "utf16.jsonl"))


@pytest.mark.parametrize(
    ("content", "byte"),
    [
        (b"ab\xffc", 2),
        (b"\xef\xbb\xbfa\xff", 4),
        (b"a\0b\0", 1),
        (b"\xff\xfea\0\0\xd8b\0", 4),
        (b"\xff\xfea\0b", 4),
        (b"\xff\xfe\0\0a\0\0\0\0\0\x11\0", 8),
        (b"\xed\xa0\x80", 0),
    ],
)
def test_the_byte_that_is_no_text_is_named(tmp_path, content, byte):
    """Case 104: one sentence for a single file."""
    path = tmp_path / "p.txt"
    path.write_bytes(content)
    for read in (read_text, read_prompt_file, lambda path: decode_text(content, path)):
        with pytest.raises(
            ValueError, match=rf"p.txt is not UTF-8 text \(byte {byte} cannot be read\); save it as UTF"
        ):
            read(path)
    try:
        faults = [fault for _, _, _, fault in read_lines(path) if fault is not None]
    except NotText as error:
        faults = [byte] if error.place == f"byte {byte} of p.txt" else []
    assert faults[:1] == [byte]


def test_a_prompt_file_of_notepad_is_the_prompt(tmp_path):
    """Case 104: `--prompt-file` of every command."""

    class Arguments:
        prompt, prompt_file = None, str(tmp_path / "p.txt")

    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "p.txt").write_bytes("a cät\r\non a mat\r\n".encode(encoding))
        assert read_prompt(Arguments) == "a cät\non a mat"
    (tmp_path / "p.txt").write_bytes("a cät".encode("cp1252"))
    with pytest.raises(ValueError, match=r"p.txt is not UTF-8 text \(byte 3 cannot be read\); save it as UTF-8.$"):
        read_prompt(Arguments)
    Arguments.prompt_file = str(tmp_path)
    with pytest.raises(ValueError, match="prompt file .* cannot be read .Is a directory.; check the path.$"):
        read_prompt(Arguments)


def test_half_a_character_reads_alike_in_training_and_evaluation(pictures):
    """Case 109: a lone surrogate is a question mark wherever a record is read, and evaluations count it."""
    rows = [{"image": f"{n}.png", "caption": "a \ud83d star", "caption_short": "\udc00"} for n in range(2)]
    (pictures / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (pictures / "a.json").write_text(json.dumps({row["image"]: row["caption"] for row in rows}))
    for name in ("a.jsonl", "a.json"):
        records = open_records(str(pictures / name))
        assert captions(records) == [("a ? star",)] * 2
        assert pairs_of(pictures, pictures / name, batch=1)[0]["text"] == "a ? star"
        pool = make_pool(records, [0, 1], [b"0", b"1"], name="own", faults={})
        assert pool.captions == ("a ? star", "a ? star")
        assert pool.mended == {"caption with characters that are not text": 2}
    assert open_records(str(pictures / "a.jsonl"))[0].short == "?"
