"""Captions of a user's own lists: several rows of a picture, named columns, forms told by keys, what is no caption."""

import csv
import json
import re

import pytest

from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.datasets.sharegpt4v import read_sharegpt4v
from tests.test_datasets_shards import picture, write_shard
from tests.test_train_records import pairs_of

NAMES = [f"{number}.png" for number in range(6)]
FIVE = {name: tuple(f"Caption {place} of {name}." for place in range(5)) for name in NAMES}


@pytest.fixture
def pictures(tmp_path):
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(picture(number))
    return tmp_path


def records_of(records):
    return {records[number].key: records[number].captions for number in range(len(records))}


def write_table(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def write_all(folder, pairs):
    """The same rows (picture, caption) in every form of a list."""
    rows = [{"image": name, "caption": text} for name, text in pairs]
    said = [{"image": name, "conversations": [{"from": "gpt", "value": text}]} for name, text in pairs]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "a.json").write_text(json.dumps(rows))
    (folder / "said.json").write_text(json.dumps(said))
    (folder / "by_file.json").write_text("{" + ", ".join(f"{json.dumps(n)}: {json.dumps(t)}" for n, t in pairs) + "}")
    write_table(folder / "a.csv", [("image", "caption"), *pairs])
    (folder / "in_folder").mkdir(exist_ok=True)
    (folder / "in_folder" / "metadata.jsonl").write_text((folder / "a.jsonl").read_text())
    return ("a.jsonl", "a.json", "said.json", "by_file.json", "a.csv", "in_folder")


def test_rows_of_one_picture_are_one_record_in_every_list_and_once_in_a_batch(pictures):
    """Case 105: 6 pictures x 5 captions, row after row or picture after picture, are 6 records."""
    by_row = [(name, FIVE[name][place]) for place in range(5) for name in NAMES]
    for pairs in (by_row, sorted(by_row)):
        for name in write_all(pictures, pairs):
            records = open_records(str(pictures / name), image_root=pictures)
            assert list(records_of(records).items()) == list(FIVE.items()), name
            assert records.left_out == {}
    # Case 105: in training no caption is a negative of another caption of its own picture.
    for name in write_all(pictures, [(one, text) for one in NAMES for text in FIVE[one]])[:5]:
        data = pairs_of(pictures, pictures / name, batch=6)
        assert data.usable == 6
        items = [data[number] for number in range(60)]
        for first in range(0, 60, 6):
            assert {item["key"] for item in items[first : first + 6]} == set(NAMES), name
        assert len({item["text"] for item in items}) > 12  # each is trained with one caption after another
        assert all(item["text"] in FIVE[item["key"]] for item in items)


def test_other_ways_to_name_a_picture_and_repeated_rows(pictures):
    """Case 105: paths are compared as the disk reads them; a caption that comes twice is there once."""
    absolute = str(pictures / "0.png")
    pairs = [
        ("0.png", "A."),
        ("./0.png", "B."),
        ("x/../0.png", "C."),
        (absolute, "D."),
        ("0.png", "A."),
        ("1.png", "E."),
    ]
    (pictures / "x").mkdir()
    for name in write_all(pictures, pairs)[:5]:
        records = open_records(str(pictures / name))
        wanted = [("0.png", ("A.", "B.", "C.", "D.")), ("1.png", ("E.",))]
        if name == "said.json":  # its folders are listed once and for all, as they are written
            wanted = [("0.png", ("A.", "B.", "C.")), (absolute, ("D.",)), ("1.png", ("E.",))]
        assert list(records_of(records).items()) == wanted, name


def test_the_held_out_part_of_sharegpt4v_has_its_own_records(pictures):
    """Case 105: rows of one picture come together within a part."""
    said = [{"image": f"{n // 2}.jpg", "conversations": [{"from": "gpt", "value": f"{n}."}]} for n in range(1004)]
    (pictures / "a.json").write_text(json.dumps(said))
    assert [len(read_sharegpt4v(pictures / "a.json", name=name)) for name in ("sharegpt4v", "sharegpt4v-1k")] == [
        2,
        500,
    ]
    assert read_sharegpt4v(pictures / "a.json")[1].captions == ("1002.", "1003.")


def test_samples_of_one_name_in_a_shard(pictures):
    """Case 105: texts that follow later belong to their picture; two pictures of one name stay two."""
    with_later = [("0.png", picture(0)), ("1.png", picture(1)), ("0.txt", "A."), ("1.txt", "B.")]
    write_members(pictures / "later.tar", with_later)
    twice = [("0.png", picture(0)), ("0.txt", "A."), ("1.png", picture(1)), ("1.txt", "B."), ("0.txt", "C.")]
    write_members(pictures / "twice.tar", [*twice, ("0.png", picture(0)), ("0.txt", "D.")])
    write_members(
        pictures / "two.tar", [("0.png", picture(0)), ("0.txt", "A."), ("0.png", picture(1)), ("0.txt", "B.")]
    )
    found = {name: open_records(str(pictures / f"{name}.tar")) for name in ("later", "twice", "two")}
    captions = {name: [records[n].captions for n in range(len(records))] for name, records in found.items()}
    assert captions == {"later": [("A.",), ("B.",)], "twice": [("A.", "C.", "D."), ("B.",)], "two": [("A.",), ("B.",)]}
    assert found["twice"].blocks.tolist() == [2]
    assert found["twice"][1].key == "twice.tar:1"


def write_members(path, members):
    """Like `write_shard`, in order, names more than once."""
    for number, (name, content) in enumerate(members):
        write_shard(path, {name: content}, mode="w" if number == 0 else "a")


def test_a_caption_column_of_shards_is_read_or_named(pictures):
    """Case 106: beside a .txt too, and a misspelt name lists the keys found."""
    notes = json.dumps({"caption": "Old.", "re_caption": "New. Longer.", "brief": "N."})
    write_shard(
        pictures / "a.tar", {"0.png": picture(0), "0.txt": "Text.", "0.json": notes, "1.png": picture(1), "1.txt": "T."}
    )
    path = str(pictures / "a.tar")
    assert open_records(path)[0].captions == ("Text.",)
    named = open_records(path, caption_column="re_caption", short_caption_column="brief")
    assert (named[0].captions, named[0].short, named.left_out) == (("New. Longer.",), "N.", {"no caption": 1})
    assert open_records(path, short_caption_column="brief")[0].short == "N."
    assert pairs_of(pictures, path, batch=1, caption_column="re_caption")[0]["text"] == "New. Longer."
    for option in ("caption_column", "short_caption_column"):
        with pytest.raises(ValueError, match=r"no column 'recaption' but has caption, re_caption, brief; the nearest"):
            open_records(path, **{option: "recaption"})
    write_shard(pictures / "b.tar", {"0.png": picture(0), "0.txt": "Text."})
    with pytest.raises(
        ValueError, match=r"^caption_column is 'x' but .* have no JSON with names, only .png, .txt; leave it"
    ):
        open_records(str(pictures / "b.tar"), caption_column="x")


def test_a_misspelt_column_and_two_of_one_name_are_refused(pictures):
    """Case 106: the columns found are listed; a folder of texts has none that could be named."""
    for name in write_all(pictures, [("0.png", "A.")]):
        if name != "said.json":
            with pytest.raises(
                ValueError, match="has no column 'captoin' but has image, caption; the nearest is 'caption'"
            ):
                open_records(str(pictures / name), caption_column="captoin")
    (pictures / "0.txt").write_text("A.")
    with pytest.raises(
        ValueError, match="^caption_column is set but folder .* has texts beside its pictures and no meta"
    ):
        open_records(f"folder:{pictures}", caption_column="caption")
    # Case 110: columns without a name may come twice.
    write_table(pictures / "a.csv", [("image", "caption", "caption"), ("0.png", "A.", "B.")])
    with pytest.raises(ValueError, match="^table .*a.csv has 2 columns named 'caption'; rename one.$"):
        open_records(str(pictures / "a.csv"))
    write_table(pictures / "a.csv", [("image", "caption", "", ""), ("0.png", "A.", "", "")])
    assert records_of(open_records(str(pictures / "a.csv"))) == {"0.png": ("A.",)}


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([{"url": "x", "alt": "y"}], "its keys are url, alt"),
        ({"images": [{"id": 1}], "info": {"a": 1}}, "its keys are images, info"),
        (["0.png", "1.png"], "it holds str, no objects"),
        ([["0.png", "A."]], "it holds list, no objects"),
        ({"000001": ["A."]}, "its keys are 000001"),
        ({f"{n}": n for n in range(90)}, r"its keys are 0, 1, .*, 19 and 70 more"),
    ],
)
def test_a_json_file_of_an_unknown_form_lists_its_keys_and_the_known_forms(pictures, content, found):
    """Case 107: and none of it is taken for LLaVA's form."""
    (pictures / "a.json").write_text(json.dumps(content, indent=1))
    for name in ("", "llava:", "json:"):
        with pytest.raises(
            ValueError, match=rf"a.json has none of the known forms, {found}; the known forms are a list of .*LLaVA"
        ):
            open_records(f"{name}{pictures / 'a.json'}")


def test_json_forms_are_told_by_their_keys(pictures):
    """Case 107: EveryDream2trainer's list, {file: captions} and {file: caption}, mixed and beside shorter lists."""
    by_file = {"0.png": ["A.", "B."], "1.png": "C.", "gone.png": "D.", "2.png": [], "3.png": None, "4.png": {"a": "b"}}
    (pictures / "a.json").write_text(json.dumps(by_file))
    records = open_records(str(pictures / "a.json"))
    assert records_of(records) == {"0.png": ("A.", "B."), "1.png": ("C.",)}
    assert records.left_out == {"missing picture": 1, "no caption": 2, "caption that is an object": 1}
    listed = [{"image": "0.png", "caption": "A."}, 7, {"image": "1.png", "caption": ["B.", "C."], "caption_short": "B"}]
    (pictures / "b.json").write_text(json.dumps(listed))
    records = open_records(str(pictures / "b.json"))
    assert (records.name, records_of(records)) == ("json", {"0.png": ("A.",), "1.png": ("B.", "C.")})
    assert (records[1].short, records.left_out) == ("B", {"broken record": 1})
    with pytest.raises(ValueError, match="b.json has none of the known forms, its keys are image, caption"):
        open_records(f"llava:{pictures / 'b.json'}")


def test_nothing_usable_says_why_and_what_is_there(pictures):
    """Case 108: the counts by kind and the keys found, in evaluation and in training."""
    write_shard(pictures / "a.tar", {f"{n}.png": picture(n) for n in range(6)} | {"0.cls": "1", "9.txt": "x"})
    write_shard(pictures / "b.tar", {"0.png": picture(0), "0.json": '{"text": "A."}'})
    assert open_records(str(pictures / "b.tar"))[0].captions == ("A.",)
    write_shard(pictures / "c.tar", {"0.png": picture(0), "0.json": '{"url": "A."}'})
    write_table(pictures / "a.csv", [("image", "caption", "url"), ("gone.png", "A.", "x"), ("0.png", " ", "x")])
    (pictures / "a.jsonl").write_text('{"image": "0.png", "caption": NaN}\n{"image": 3, "caption": "A."}\n')
    (pictures / "a.json").write_text('[{"image": "0.png", "conversations": []}, {"image": "1.png"}]')
    sentences = {
        "a.tar": "a.tar has 0 usable records (6 no caption, 1 missing picture); it has .png, .cls, .txt; correct",
        "c.tar": "c.tar lacks a caption but has url; write one, or name the columns with caption_column (known",
        "a.csv": "a.csv has 0 usable records (1 missing picture, 1 no caption); it has image, caption, url; correct",
        "a.jsonl": "a.jsonl has 0 usable records (1 caption that is NaN or Infinity, 1 picture that is a number); it",
        "a.json": "a.json has 0 usable records (1 broken record, 1 no caption); correct the paths or the captions.",
    }
    for name, sentence in sentences.items():
        for open_it in (open_records, lambda path: pairs_of(pictures, path)):
            with pytest.raises(ValueError, match=re.escape(sentence)):
                open_it(str(pictures / name))
    for rows in ("{}\n", '{"image": "a\\u0000b", "caption": "A."}\n', '{"image": "\\ud83d", "caption": "A."}\n'):
        (pictures / "odd.jsonl").write_text(rows)
        with pytest.raises(ValueError, match=r"odd.jsonl has 0 usable records \(1 (broken record|missing picture)\)"):
            open_records(str(pictures / "odd.jsonl"))
        if rows != "{}\n":
            with pytest.raises(PictureFault, match="missing picture"):
                read_rgb(open_records(str(pictures / "odd.jsonl"), skip_missing=False)[0].image)
    write_table(pictures / "few.csv", [("image", "caption"), ("0.png", "A."), ("gone.png", "A.")])
    with pytest.raises(ValueError, match=r"has 1 usable records \(1 missing picture skipped\), one batch of all proc"):
        pairs_of(pictures, pictures / "few.csv", batch=2)


KINDS = {
    "caption that is NaN or Infinity": ["NaN", "-Infinity"],
    "caption that is a number": ["3", "2.5"],
    "caption that is true or false": ["true"],
    "caption that is an object": ['{"a": "b"}'],
    "caption that is a list of other things than texts": ['["A.", 3]', "[[1]]", "[NaN]"],
    "no caption": ["null", "[]", '" "'],
}
ODD = {value: kind for kind, values in KINDS.items() for value in values}


@pytest.mark.parametrize("value", ODD)
def test_what_is_no_text_is_a_fault_of_its_kind(pictures, value):
    """Case 110: in every form of JSON, and never written out as text."""
    good = '{"image": "1.png", "caption": "A."}'
    (pictures / "a.jsonl").write_text(f'{good}\n{{"image": "0.png", "caption": {value}}}\n')
    (pictures / "a.json").write_text(f'[{good}, {{"image": "0.png", "caption": {value}}}]')
    (pictures / "by_file.json").write_text(f'{{"1.png": "A.", "0.png": {value}}}')
    said = '{"image": "%s", "conversations": [{"from": "gpt", "value": %s}]}'
    (pictures / "said.json").write_text(f"[{said % ('1.png', json.dumps('A.'))}, {said % ('0.png', value)}]")
    notes = {"1.png": picture(1), "1.json": good, "0.png": picture(0), "0.json": f'{{"caption": {value}}}'}
    write_shard(pictures / "a.tar", notes)
    for name in ("a.jsonl", "a.json", "by_file.json", "said.json", "a.tar"):
        records = open_records(str(pictures / name))
        assert records.left_out == {ODD[value]: 1}, name
        assert [records[n].captions for n in range(len(records))] == [("A.",)]
        assert pairs_of(pictures, pictures / name, batch=1)[0]["text"] == "A."


def test_a_short_caption_that_is_no_text_is_a_fault_but_pandas_nan_is_none(pictures):
    """Case 110: NaN is how pandas writes that there is none."""
    start = '"caption": "A.", "caption_short": '
    rows = [f'{{"image": "{number}.png", {start}{value}}}' for number, value in enumerate(["NaN", "3", "{}"])]
    (pictures / "a.jsonl").write_text("\n".join(rows))
    records = open_records(str(pictures / "a.jsonl"))
    assert (len(records), records[0].short) == (1, None)
    assert records.left_out == {"short caption that is a number": 1, "short caption that is an object": 1}


def test_saved_data_sets_join_rows_and_count_what_is_no_text(pictures):
    """Cases 105 and 110: by path, and by the bytes of pictures; two pictures of one file name stay two."""
    datasets = pytest.importorskip("datasets", reason="Hugging Face's datasets is not installed")
    pair = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features({"image": pair, "text": datasets.Value("string")})
    images = [{"bytes": picture(n), "path": "a.png"} for n in (0, 1, 0)]
    rows = {"image": images, "text": ["A.", "B.", "C."]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(str(pictures / "bytes"))
    paths = {"image": [str(pictures / name) for name in ("0.png", "1.png", "0.png")], "text": ["A.", "B.", "C."]}
    datasets.Dataset.from_dict(paths).save_to_disk(str(pictures / "paths"))
    for name in ("bytes", "paths"):
        records = open_records(str(pictures / name))
        assert [records[n].captions for n in range(len(records))] == [("A.", "C."), ("B.",)], name
    odd = {"image": paths["image"], "text": [{"a": "b"}, {"a": "c"}, None]}
    datasets.Dataset.from_dict(odd).save_to_disk(str(pictures / "odd"))
    with pytest.raises(
        ValueError, match=r"0 usable records \(2 caption that is an object, 1 no caption\); it has image, text"
    ):
        open_records(str(pictures / "odd"))
