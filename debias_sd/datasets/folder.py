"""A folder of pictures: with `metadata.jsonl` or `metadata.csv` as Hugging Face has it, or `1.jpg` beside `1.txt`."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from debias_sd.datasets.columns import fold
from debias_sd.datasets.jsonl import read_jsonl
from debias_sd.datasets.listing import NO_CAPTION, NO_PICTURE, RowRecords
from debias_sd.datasets.records import Record
from debias_sd.datasets.tables import read_table

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif")


class PairedFiles:
    """Records of pictures with a text of the same name; only the names are held. `left_out` counts the others."""

    name, expected = "folder", None

    def __init__(self, root: Path) -> None:
        self.root = root
        pictures, texts = _files(root)
        self.left_out: dict[str, int] = dict(
            Counter({NO_CAPTION: len(pictures.keys() - texts), NO_PICTURE: len(texts - pictures.keys())}) + Counter()
        )
        stems = sorted(pictures.keys() & texts)
        empty = [stem for stem in stems if not os.path.getsize(root / f"{stem}.txt")]
        if empty:
            self.left_out[NO_CAPTION] = self.left_out.get(NO_CAPTION, 0) + len(empty)
        gone = set(empty)
        self.files = tuple(pictures[stem] for stem in stems if stem not in gone)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        file = self.files[index]
        text = (self.root / file).with_suffix(".txt").read_text(encoding="utf-8", errors="replace")
        return Record(file, self.root / file, (fold(text),))


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
    root: str | Path,
    *,
    image_root: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
    skip_missing: bool = True,
) -> RowRecords | PairedFiles:
    """Read a folder; ValueError when it is none, or has neither metadata nor a picture with a text beside it."""
    root = Path(root)
    if not root.is_dir():
        raise ValueError(f"folder {root} does not exist; correct the path.")
    options = {"image_root": image_root or root, "image_column": image_column, "caption_column": caption_column}
    options |= {"short_caption_column": short_caption_column}
    if (root / "metadata.jsonl").is_file():
        return read_jsonl(root / "metadata.jsonl", **options, skip_missing=skip_missing, name="folder")
    if (root / "metadata.csv").is_file():
        return read_table(root / "metadata.csv", **options, skip_missing=skip_missing, name="folder")
    found = PairedFiles(root)
    if not found.files:
        raise ValueError(
            f"folder {root} has no metadata.jsonl and no picture with a text of the same name; write "
            '{"file_name": "1.jpg", "text": "..."} lines into metadata.jsonl, or 1.txt beside 1.jpg.'
        )
    return found
