"""Flickr30k in the three forms it is passed on in.

* Karpathy's `dataset_flickr30k.json`: images[].filename, split, sentences[].raw
* `flickr_annotations_30k.csv`: raw (a JSON list), sentids, split, filename, img_id
* `results_20130124.token`: `name.jpg#k<TAB>caption`; 31,783 pictures, for it knows no splits

The full set is train, val and test of Karpathy's file: 31,014 pictures and 155,070 captions; test-1k is its test split.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from debias_sd.datasets.columns import NoText, check_text
from debias_sd.datasets.listing import NO_CAPTION, NOT_UTF8, LeftOut, check_file, find_place, list_records, load_json
from debias_sd.datasets.records import ListedRecords, Pool, Record
from debias_sd.text_files import parse_json, read_lines, read_text

POOLS = {"flickr30k": Pool(31_014, 155_070), "flickr30k-test": Pool(1000, 5000)}
_PLACES = ("dataset_flickr30k.json", "flickr_annotations_30k.csv", "results_20130124.token", "results.token")
_IMAGES = ("flickr30k-images", "flickr30k_images", "images", "Images", ".")

Row = tuple[str, str | None, list[str]]  # file, split, captions


def read_flickr30k(root: str | Path, *, test: bool = False, image_root: str | Path | None = None) -> ListedRecords:
    """Read the folder (or one of the files), in the order of the file; ValueError where `test` needs the splits."""
    path = Path(root)
    path = find_place(path, _PLACES, what="Flickr30k") if path.is_dir() else path
    check_file(path, what="Flickr30k's file")
    readers = {".json": _read_karpathy, ".csv": _read_csv, ".token": _read_token}
    if path.suffix not in readers:
        raise ValueError(f"{path} is not a file of Flickr30k; name one of {', '.join(_PLACES)}.")
    if test and path.suffix == ".token":
        raise ValueError(f"{path} does not say which pictures are the test split; name dataset_flickr30k.json instead.")
    images = Path(image_root) if image_root is not None else find_place(path.parent, _IMAGES, what="Flickr30k")
    left_out = LeftOut()
    records = []
    for file, split, texts in readers[path.suffix](path, left_out):
        if test and split != "test":
            continue
        captions = tuple(text.strip() for text in texts if text.strip())
        if captions:
            records.append(Record(file, images / file, captions))
        else:
            left_out.add(NO_CAPTION)
    name = "flickr30k-test" if test else "flickr30k"
    return list_records(name, records, expected=POOLS[name], left_out=left_out)


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
