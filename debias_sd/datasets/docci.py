"""DOCCI (arXiv 2404.19753): `docci_descriptions.jsonlines` and `images/`, 5,000 test records.

The rows of the qualification sets (`qual_dev_...`, `qual_test_...`) carry the same split labels as the others; their
`example_id` tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from debias_sd.datasets.columns import NoText, check_text
from debias_sd.datasets.listing import NO_CAPTION, NOT_UTF8, LeftOut, check_file, find_place, list_records
from debias_sd.datasets.records import ListedRecords, Pool, Record
from debias_sd.text_files import parse_json, read_lines

POOL = Pool(5000, 5000)
_PLACES = ("docci_descriptions.jsonlines", "docci/docci_descriptions.jsonlines")


def read_docci(root: str | Path, *, split: str = "test", image_root: str | Path | None = None) -> ListedRecords:
    """Read the folder (or the file itself); ValueError names a line that is not a record."""
    path = Path(root)
    path = find_place(path, _PLACES, what="DOCCI") if path.is_dir() else path
    check_file(path, what="DOCCI's file")
    images = Path(image_root) if image_root is not None else path.parent / "images"
    left_out = LeftOut()
    records = _read(path, images, split=split, left_out=left_out)
    return list_records("docci", records, expected=POOL if split == "test" else None, left_out=left_out)


def _read(path: Path, images: Path, *, split: str, left_out: LeftOut) -> Iterator[Record]:
    for number, (_, _, line, bad) in enumerate(read_lines(path), start=1):
        if bad is not None:
            left_out.add(NOT_UTF8, f"byte {bad:,} of {path.name}")
            continue
        if not line.strip():
            continue
        try:
            row = parse_json(line)
            key, label, file_name, text = (row[name] for name in ("example_id", "split", "image_file", "description"))
            if label != split or key.startswith("qual_"):
                continue
            text = "" if text is None else check_text(text).strip()
            image = images / file_name
        except NoText as fault:
            left_out.add(str(fault))
            continue
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(
                f"line {number} of {path} lacks example_id, split, image_file or description; copy it again."
            ) from None
        if text:
            yield Record(key, image, (text,))
        else:
            left_out.add(NO_CAPTION)
