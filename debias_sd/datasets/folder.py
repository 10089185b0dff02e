"""A folder of pictures: with `metadata.jsonl` or `metadata.csv` as Hugging Face has it, or `1.jpg` beside `1.txt`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import fold
from debias_sd.datasets.listing import NO_CAPTION, NO_PICTURE, NOT_UTF8, LeftOut, RowRecords
from debias_sd.datasets.pictures import SUFFIXES
from debias_sd.datasets.records import Record, describe_counts
from debias_sd.datasets.row_files import read_jsonl, read_table
from debias_sd.text import NotText, read_text

UNREADABLE = "unreadable text file"


class PairedFiles:
    """Records of pictures with a text of the same name; only the names are held. `left_out` counts the others.

    Each text is read once at the start, so that those that are empty or no text are counted before anything begins.
    """

    name, expected, keys = "folder", None, ()

    def __init__(self, root: Path) -> None:
        self.root = root
        pictures, texts = _files(root)
        left_out = LeftOut()
        left_out.add(NO_CAPTION, count=len(pictures.keys() - texts))
        left_out.add(NO_PICTURE, count=len(texts - pictures.keys()))
        files = []
        for stem in sorted(pictures.keys() & texts):
            try:
                if fold(read_text(root / f"{stem}.txt")):
                    files.append(pictures[stem])
                else:
                    left_out.add(NO_CAPTION)
            except NotText as fault:
                left_out.add(NOT_UTF8, fault.place)
            except ValueError:
                left_out.add(UNREADABLE)
        self.files, self.left_out = tuple(files), left_out.as_dict()

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        file = self.files[index]
        return Record(file, self.root / file, (fold(read_text((self.root / file).with_suffix(".txt"))),))


def _files(root: Path) -> tuple[dict[str, str], set[str]]:
    """Pictures by their path without suffix, and the texts' paths without suffix, sub-folders too."""
    pictures: dict[str, str] = {}
    texts: set[str] = set()
    for folder, folders, files in os.walk(root):
        folders.sort()
        below = os.path.relpath(folder, root)
        for file in sorted(files):
            stem, suffix = os.path.splitext(os.path.normpath(os.path.join(below, file)))
            if suffix.lower() in SUFFIXES:
                pictures.setdefault(stem, stem + suffix)
            elif suffix == ".txt":
                texts.add(stem)
    return pictures, texts


def read_folder(
    root: str | Path, *, image_root: str | Path | None = None, skip_missing: bool = True, **columns: Any
) -> RowRecords | PairedFiles:
    """Read a folder; ValueError when it is none, or has neither metadata nor a picture with a text beside it."""
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"folder {root} does not exist; correct the path.")
    options = columns | {"image_root": image_root or root, "skip_missing": skip_missing, "name": "folder"}
    if (root / "metadata.jsonl").is_file():
        return read_jsonl(root / "metadata.jsonl", **options)
    if (root / "metadata.csv").is_file():
        return read_table(root / "metadata.csv", **options)
    found = PairedFiles(root)
    named = [name for name, value in columns.items() if value is not None]
    if found.files and named:
        raise ValueError(
            f"{named[0]} is set, folder {root} has texts beside its pictures and no metadata.jsonl whose columns could "
            "be named; leave it out."
        )
    if not found.files:
        counts = f" ({describe_counts(found.left_out)})" if found.left_out else ""
        raise ValueError(
            f"folder {root} has no metadata.jsonl and no picture with a text of the same name{counts}; write "
            '{"file_name": "1.jpg", "text": "..."} lines into metadata.jsonl, or 1.txt beside 1.jpg.'
        )
    return found
