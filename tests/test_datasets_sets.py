"""The evaluation sets, each on a miniature in its on-disk format, quirks included."""

import json

import pytest
from PIL import Image

from debias_sd.datasets.names import open_records
from debias_sd.datasets.records import Pool, Records, pool_difference

# The table of the evaluation protocol: pictures and captions.
POOLS = {
    "urban1k": (1000, 1000),
    "dci": (7805, 7805),
    "long-dci": (7602, 7602),
    "docci": (5000, 5000),
    "coco": (5000, 25_014),
    "flickr30k": (31_014, 155_070),
    "flickr30k-test": (1000, 5000),
}


def measure_pool(records):
    return Pool(len(records), sum(len(records[index].captions) for index in range(len(records))))


def pool_note(records):
    return pool_difference(records.name, measure_pool(records), records.expected, left_out=records.left_out)


def draw(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def texts(records):
    assert isinstance(records, Records)
    assert all(records[index].image.is_file() for index in range(len(records)))
    return {records[index].key: records[index].captions for index in range(len(records))}


@pytest.fixture
def urban1k(tmp_path):
    for number in (1, 2, 10, 11):
        draw(tmp_path / "Urban1k" / "image" / f"{number}.jpg")
    for number, text in {1: "First line. \nSecond line.", 2: "", 10: "Ten.", 12: "no picture"}.items():
        write(tmp_path / "Urban1k" / "caption" / f"{number}.txt", text)
    return tmp_path


@pytest.fixture
def dci(tmp_path):
    root = tmp_path / "densely_captioned_images"
    rows = {
        "sa_1": {"short_caption": " A dog.", "extra_caption": "It runs.\n"},
        "sa_2": {"short_caption": "A cat. ", "extra_caption": " "},
        "sa_3": {"short_caption": "", "extra_caption": ""},
        "sa_4": {"short_caption": "Gone.", "extra_caption": "Gone."},
    }
    for name, row in rows.items():
        write(root / "annotations" / f"{name}-data.json", row | {"image": f"{name}.jpg", "mask_data": {"0": {}}})
    write(root / "annotations" / "sa_5-data.json", {"short_caption": "without a picture's name"})
    for name in ("sa_1", "sa_2", "sa_3"):
        draw(root / "photos" / f"{name}.jpg")
    write(root / "splits.json", {"train": ["sa_1-data.json"], "valid": ["sa_2-data.json"], "test": []})
    return tmp_path


@pytest.fixture
def docci(tmp_path):
    rows = [
        ("train_00000", "train", "In training."),
        ("test_00000", "test", " A harbour. "),
        ("qual_test_00000", "test", "Of the qualification set."),
        ("test_00001", "test", ""),
        ("test_00002", "test", "No picture."),
    ]
    lines = [
        {"example_id": key, "split": split, "image_file": f"{key}.jpg", "description": text}
        for key, split, text in rows
    ]
    write(tmp_path / "docci_descriptions.jsonlines", "".join(json.dumps(line) + "\n" for line in lines))
    for key, _, _ in rows[:4]:
        draw(tmp_path / "images" / f"{key}.jpg")
    return tmp_path


@pytest.fixture
def coco(tmp_path):
    counts = {139: 5, 285: 6, 632: 7, 724: 0, 776: 5}
    images = [{"id": number, "file_name": f"{number:012d}.jpg", "license": 1} for number in counts]
    captions = [(number, place) for place in range(7) for number in counts if place < counts[number]]
    annotations = [{"image_id": n, "id": i, "caption": f"Caption {p} of {n}.\n"} for i, (n, p) in enumerate(captions)]
    write(
        tmp_path / "annotations" / "captions_val2017.json", {"images": images, "annotations": annotations, "info": {}}
    )
    for number in (139, 285, 632, 724):
        draw(tmp_path / "val2017" / f"{number:012d}.jpg")
    return tmp_path


FLICKR = {"1.jpg": ("train", ["A, b.", "C."]), "2.jpg": ("test", ["D .", 'E "f".']), "3.jpg": ("val", ["G.", "H."])}


@pytest.fixture
def flickr(tmp_path):
    """A folder with the three forms of the set."""
    images = [
        {"filename": name, "split": split, "imgid": n, "sentences": [{"raw": text, "tokens": []} for text in captions]}
        for n, (name, (split, captions)) in enumerate(FLICKR.items())
    ]
    write(tmp_path / "dataset_flickr30k.json", {"images": images, "dataset": "flickr30k"})
    rows = ["raw,sentids,split,filename,img_id"]
    for number, (name, (split, captions)) in enumerate(FLICKR.items()):
        quoted = json.dumps(captions).replace('"', '""')
        rows.append(f'"{quoted}","[0, 1]",{split},{name},{number}')
    write(tmp_path / "flickr_annotations_30k.csv", "\n".join(rows) + "\n")
    lines = [f"{name}#{k}\t{text}\n" for name, (_, captions) in FLICKR.items() for k, text in enumerate(captions)]
    write(tmp_path / "results_20130124.token", "".join(lines))
    for name in FLICKR:
        draw(tmp_path / "flickr30k-images" / name)
    return tmp_path


def test_urban1k_docci_and_coco_keep_what_their_papers_count(urban1k, docci, coco):
    for root in (urban1k, urban1k / "Urban1k"):
        records = open_records(f"urban1k:{root}")
        assert list(texts(records).items()) == [("1", ("First line.",)), ("2", ("",)), ("10", ("Ten.",))]
        assert records.left_out == {"no caption": 1, "missing picture": 1}
        assert measure_pool(records) == Pool(3, 3)
    records = open_records(f"docci:{docci}")
    assert texts(records) == {"test_00000": ("A harbour.",)}
    assert records.left_out == {"no caption": 1, "missing picture": 1}
    with (docci / "docci_descriptions.jsonlines").open("a") as file:
        file.write('{"example_id": "test_9"}\n')
    with pytest.raises(ValueError, match="line 6 of .* lacks example_id, split, image_file or description"):
        open_records(f"docci:{docci}")
    records = open_records(f"coco:{coco}")
    assert [len(captions) for captions in texts(records).values()] == [5, 6, 7]
    assert records[0].captions[:2] == ("Caption 0 of 139.", "Caption 1 of 139.")
    assert measure_pool(records) == Pool(3, 18)
    assert records.left_out == {"no caption": 1, "missing picture": 1}
    assert texts(open_records(f"coco:{coco / 'annotations' / 'captions_val2017.json'}")) == texts(records)


def test_dci_joins_both_captions_and_long_dci_has_the_extra_one(dci):
    records = open_records(f"dci:{dci}")
    assert texts(records) == {"sa_1.jpg": ("A dog.It runs.",), "sa_2.jpg": ("A cat.",)}
    assert records[0].short == "A dog."
    assert records.left_out == {"no caption": 1, "missing picture": 1, "broken record": 1}
    assert texts(open_records(f"dci:{dci / 'densely_captioned_images'}")) == texts(records)
    records = open_records(f"long-dci:{dci}")
    assert texts(records) == {"sa_1.jpg": ("It runs.",)}
    assert records.left_out == {"no caption": 2, "missing picture": 1, "broken record": 1}


@pytest.mark.parametrize("file", ["dataset_flickr30k.json", "flickr_annotations_30k.csv"])
def test_flickr30k_in_full_and_its_test_split(flickr, file):
    assert texts(open_records(f"flickr30k:{flickr / file}")) == {
        name: tuple(captions) for name, (_, captions) in FLICKR.items()
    }
    assert texts(open_records(f"flickr30k-test:{flickr / file}")) == {"2.jpg": ("D .", 'E "f".')}


def test_flickr30k_of_a_token_file_has_no_test_split(flickr):
    path = flickr / "results_20130124.token"
    assert texts(open_records(f"flickr30k:{path}")) == {name: tuple(texts) for name, (_, texts) in FLICKR.items()}
    with pytest.raises(ValueError, match="does not say which pictures are the test split; name dataset_flickr30k.json"):
        open_records(f"flickr30k-test:{path}")
    path.write_text("1.jpg A caption\n")
    with pytest.raises(ValueError, match="line 1 of .* is not `name.jpg#k<TAB>caption`"):
        open_records(f"flickr30k:{path}")


def test_every_set_knows_its_published_pool_and_notes_another_alone(urban1k, dci, docci, coco, flickr):
    roots = {"urban1k": urban1k, "dci": dci, "long-dci": dci, "docci": docci, "coco": coco}
    for name, pool in POOLS.items():
        records = open_records(f"{name}:{roots.get(name, flickr)}")
        assert (records.name, records.expected) == (name, Pool(*pool))
        assert pool_note(records).startswith(f"{name} has ")
    assert pool_note(open_records(f"coco:{coco}")) == (
        "coco has 3 pictures and 18 captions (1 missing picture, 1 no caption left out) but published results have "
        "5,000 pictures and 25,014 captions: the numbers cannot be compared with them."
    )
    root = urban1k / "Urban1k"
    for number in range(1, 1001):
        (root / "image" / f"{number}.jpg").touch()
        (root / "caption" / f"{number}.txt").write_text(f"Caption {number}.")
    (root / "caption" / "2.txt").write_text("")
    assert pool_note(open_records(f"urban1k:{root}")) is None


@pytest.mark.parametrize("kind", [kind for kind in POOLS if kind != "flickr30k-test"])
def test_a_folder_of_something_else_is_named(kind, tmp_path):
    with pytest.raises(ValueError, match="has none of .*; name the folder that the set was unpacked into.$"):
        open_records(f"{kind}:{tmp_path}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("captions_val2017.json", "[]", "holds a list but COCO's captions file is a dict"),
        ("captions_val2017.json", "{", "is not JSON"),
        ("captions_val2017.json", '{"images": []}', "lacks images or annotations as COCO's captions have them"),
        ("dataset_flickr30k.json", '{"images": [{}]}', "lacks filename, split or sentences of an image"),
        ("flickr_annotations_30k.csv", "raw,split\nx,y\n", "lacks raw, split or filename in a row"),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    (tmp_path / "val2017").mkdir()
    with pytest.raises(ValueError, match=f"^[^\n]*{message}[^\n]*$"):
        open_records(str(tmp_path / name))
