"""The sets that published evaluations use, each in the form in which it is passed on.

* Urban1k (Long-CLIP, arXiv 2403.15378 and its script): `image/1.jpg` with `caption/1.txt`, of which the first line
  counts. One text file is empty and stays in the pool, which is 1,000 to 1,000 in every published table.
* DCI (arXiv 2312.08578): `annotations/*.json`, `photos/`. The caption is `short_caption` and `extra_caption` put
  together without a separator; Long-DCI has the latter alone, and no record where that is empty. All splits are one
  pool; Long-DCI has 7,602 in one published rebuild.
* DOCCI (arXiv 2404.19753): `docci_descriptions.jsonlines`, `images/`, the test records. The rows of the qualification
  sets carry the same split labels; their `example_id` (`qual_...`) tells them apart.
* COCO val2017: all captions count, twelve pictures have 6 of them and one has 7; evaluations that keep 5 of each have
  another pool.
* Flickr30k: Karpathy's `dataset_flickr30k.json` (images[].filename, split, sentences[].raw);
  `flickr_annotations_30k.csv` (raw, a JSON list; split, filename); `results_20130124.token`, lines of
  `name.jpg#k<TAB>caption` of 31,783 pictures, which knows no splits. The full set is the first one's three splits.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from debias_sd.datasets.columns import NoText, check_text
from debias_sd.datasets.listing import (
    BROKEN,
    NO_CAPTION,
    NO_PICTURE,
    NOT_UTF8,
    LeftOut,
    check_file,
    find_place,
    list_records,
    load_json,
)
from debias_sd.datasets.records import ListedRecords, Pool, Record
from debias_sd.text import NotText, parse_json, read_lines, read_text

POOLS = {
    "urban1k": Pool(1000, 1000),
    "dci": Pool(7805, 7805),
    "long-dci": Pool(7602, 7602),
    "docci": Pool(5000, 5000),
    "coco": Pool(5000, 25_014),
    "flickr30k": Pool(31_014, 155_070),
    "flickr30k-test": Pool(1000, 5000),
}
_DCI = ("annotations", "densely_captioned_images/annotations", "data/densely_captioned_images/annotations")
_DOCCI = ("docci_descriptions.jsonlines", "docci/docci_descriptions.jsonlines")
_COCO = ("annotations/captions_val2017.json", "captions_val2017.json")
_FLICKR = ("dataset_flickr30k.json", "flickr_annotations_30k.csv", "results_20130124.token", "results.token")
_FLICKR_IMAGES = ("flickr30k-images", "flickr30k_images", "images", "Images", ".")

Row = tuple[str, str | None, list[str]]  # of Flickr30k: file, split, captions


def read_evaluation_set(name: str, root: str | Path, *, image_root: str | Path | None = None) -> ListedRecords:
    """Read the set `name` of POOLS, in the order of its files; of most the file itself may be named too.

    Pictures that are not there and records without a caption are left out and counted. ValueError with one sentence
    where the data is not the set's.
    """
    root, left_out = Path(root), LeftOut()
    images = None if image_root is None else Path(image_root)
    if name == "urban1k":  # its empty caption counts
        return ListedRecords(name, tuple(_read_urban1k(root, images, left_out)), POOLS[name], left_out.as_dict())
    if name in ("dci", "long-dci"):
        records = _read_dci(root, images, left_out, long=name == "long-dci")
    elif name == "docci":
        records = _read_docci(root, images, left_out)
    elif name == "coco":
        records = _read_coco(root, images)
    else:
        records = _read_flickr30k(root, images, left_out, test=name == "flickr30k-test")
    return list_records(name, records, expected=POOLS[name], left_out=left_out)


def _read_urban1k(root: Path, images: Path | None, left_out: LeftOut) -> Iterator[Record]:
    captions = find_place(root, ("caption", "Urban1k/caption"), what="Urban1k")
    texts = {path.stem: path for path in captions.glob("*.txt")}
    pictures = {path.stem: path for path in (images or captions.parent / "image").glob("*.jpg")}
    left_out.add(NO_PICTURE, count=len(texts.keys() - pictures.keys()))
    left_out.add(NO_CAPTION, count=len(pictures.keys() - texts.keys()))
    for stem in sorted(texts.keys() & pictures.keys(), key=lambda stem: (len(stem), stem)):
        try:
            yield Record(stem, pictures[stem], (read_text(texts[stem]).partition("\n")[0].strip(),))
        except NotText as fault:
            left_out.add(NOT_UTF8, fault.place)


def _read_dci(root: Path, images: Path | None, left_out: LeftOut, *, long: bool) -> Iterator[Record]:
    annotations = find_place(root, _DCI, what="DCI")
    photos = images or annotations.parent / "photos"
    for path in sorted(path for path in annotations.glob("*.json") if path.name != "splits.json"):
        try:
            row = load_json(path, kind=dict, what="an annotation of DCI")
            texts = [row.get(name) for name in ("short_caption", "extra_caption")]
            short, extra = ("" if text is None else check_text(text) for text in texts)
        except NotText as fault:
            left_out.add(NOT_UTF8, fault.place)
        except NoText as fault:
            left_out.add(str(fault))
        else:
            if isinstance(row.get("image"), str):
                caption = extra.strip() if long else (short + extra).strip()
                yield Record(row["image"], photos / row["image"], (caption,), short.strip() or None)
            else:
                left_out.add(BROKEN)


def _read_docci(root: Path, images: Path | None, left_out: LeftOut) -> Iterator[Record]:
    path = _file_of(root, _DOCCI, what="DOCCI")
    for number, (_, _, line, bad) in enumerate(read_lines(path), start=1):
        if bad is not None:
            left_out.add(NOT_UTF8, f"byte {bad:,} of {path.name}")
            continue
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            key, label, file, text = (row[name] for name in ("example_id", "split", "image_file", "description"))
            if label == "test" and not key.startswith("qual_"):
                text = "" if text is None else check_text(text).strip()
                yield Record(key, (images or path.parent / "images") / file, (text,))
        except NoText as fault:
            left_out.add(str(fault))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"line {number} of {path} lacks example_id, split, image_file or description; copy it again."
            ) from None


def _read_coco(root: Path, images: Path | None) -> Iterator[Record]:
    path = _file_of(root, _COCO, what="COCO val2017")
    content = load_json(path, kind=dict, what="COCO's captions file")
    try:
        files = {row["id"]: row["file_name"] for row in content["images"]}
        texts: dict[int, list[str]] = {number: [] for number in files}
        for row in content["annotations"]:
            texts[row["image_id"]].append(check_text(row["caption"]).strip())
    except NoText as error:
        raise ValueError(f"{path} has a {error}; copy it again.") from None
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path} lacks images or annotations as COCO's captions have them; copy it again.") from None
    above = path.parent.parent if path.parent.name == "annotations" else path.parent
    images = images or find_place(above, ("val2017", "images/val2017"), what="COCO val2017")
    for number, file in files.items():
        yield Record(file, images / file, tuple(text for text in texts[number] if text))


def _read_flickr30k(root: Path, images: Path | None, left_out: LeftOut, *, test: bool) -> Iterator[Record]:
    path = _file_of(root, _FLICKR, what="Flickr30k")
    readers = {".json": _read_karpathy, ".csv": _read_csv, ".token": _read_token}
    if path.suffix not in readers:
        raise ValueError(f"{path} is not a file of Flickr30k; name one of {', '.join(_FLICKR)}.")
    if test and path.suffix == ".token":
        raise ValueError(f"{path} does not say which pictures are the test split; name dataset_flickr30k.json instead.")
    images = images or find_place(path.parent, _FLICKR_IMAGES, what="Flickr30k")
    for file, split, texts in readers[path.suffix](path, left_out):
        if split == "test" or not test:
            yield Record(file, images / file, tuple(text.strip() for text in texts if text.strip()))


def _read_karpathy(path: Path, _: LeftOut) -> Iterator[Row]:
    content = load_json(path, kind=dict, what="Karpathy's file")
    try:
        for row in content["images"]:
            texts = [check_text(sentence["raw"]) for sentence in row["sentences"]]
            yield check_text(row["filename"]), row["split"], texts
    except (KeyError, TypeError, NoText):
        raise ValueError(f"{path} lacks filename, split or sentences of an image; copy it again.") from None


def _read_csv(path: Path, _: LeftOut) -> Iterator[Row]:
    text = read_text(path, what="Flickr30k's file")
    try:
        for row in csv.DictReader(io.StringIO(text, newline="")):
            texts = [check_text(text) for text in parse_json(row["raw"])]
            yield check_text(row["filename"]), row["split"], texts
    except (KeyError, TypeError, ValueError, csv.Error):
        raise ValueError(f"{path} lacks raw, split or filename in a row; copy it again.") from None


def _read_token(path: Path, left_out: LeftOut) -> Iterator[Row]:
    texts: dict[str, list[str]] = {}
    for number, (_, _, line, bad) in enumerate(read_lines(path), start=1):
        name, tab, text = line.rstrip("\r\n").partition("\t")
        file_name, mark, _ = name.rpartition("#")
        if bad is not None:
            left_out.add(NOT_UTF8, f"byte {bad:,} of {path.name}")
        elif tab and mark:
            texts.setdefault(file_name, []).append(text)
        else:
            raise ValueError(f"line {number} of {path} is not `name.jpg#k<TAB>caption`; copy it again.")
    for file_name, captions in texts.items():
        yield file_name, None, captions


def _file_of(root: Path, names: tuple[str, ...], *, what: str) -> Path:
    """The set's file: `root` itself, or the first of `names` below it."""
    path = find_place(root, names, what=what) if root.is_dir() else root
    check_file(path, what=f"{what}'s file")
    return path
