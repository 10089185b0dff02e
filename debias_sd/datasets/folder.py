"""A folder of pictures with texts: Hugging Face's `metadata.jsonl`, `1.txt` beside `1.jpg`, or saved `datasets`.

The library `datasets` itself is only needed for the last one.
"""

from __future__ import annotations

import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from debias_sd.datasets.columns import SAMPLE, Columns, choose_columns, fold
from debias_sd.datasets.listing import (
    NO_CAPTION,
    NO_PICTURE,
    NOT_UTF8,
    LeftOut,
    RowRecords,
    group_rows,
    join_record,
    places_of,
    text_fault,
)
from debias_sd.datasets.pictures import SUFFIXES
from debias_sd.datasets.records import Encoded, Picture, Pool, Record, describe_counts
from debias_sd.datasets.row_files import read_jsonl, read_table
from debias_sd.text import NotText, read_text

UNREADABLE = "unreadable text file"
_BATCH = 1000  # rows that are looked at together
_ENDS = 1024  # bytes at either end of a picture


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
    """Read a folder; ValueError when it is not one, or has neither metadata nor a picture with a text beside it."""
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
            f"{named[0]} is set but folder {root} has texts beside its pictures and no metadata.jsonl whose columns "
            "could be named; leave it out."
        )
    if not found.files:
        counts = f" ({describe_counts(found.left_out)})" if found.left_out else ""
        raise ValueError(
            f"folder {root} has no metadata.jsonl and no picture with a text of the same name{counts}; write "
            '{"file_name": "1.jpg", "text": "..."} lines into metadata.jsonl, or 1.txt beside 1.jpg.'
        )
    return found


class SavedDataset:
    """Records of one split: rows that can be used, those of one picture together. Rows are read when asked for."""

    name = "datasets"
    expected: Pool | None = None

    def __init__(self, rows: Any, columns: Columns, root: Path) -> None:
        self._rows, self._columns, self._root = rows, columns, root
        self.keys = columns.found
        usable, self.left_out = _look(rows, columns)
        order, self._bounds = group_rows(_pictures_of(rows, columns.image, usable, root))
        self._places = usable if order is None else usable[order]

    def __len__(self) -> int:
        return len(self._places) if self._bounds is None else len(self._bounds) - 1

    def __getitem__(self, index: int) -> Record:
        places = [int(self._places[place]) for place in places_of(self._bounds, index, len(self))]
        rows = [self._rows[place] for place in places]
        return join_record(*self._picture(rows[0][self._columns.image], places[0]), self._columns, rows)

    def _picture(self, value: Any, index: int) -> tuple[str, Picture]:
        """A path as text, bytes, or what an undecoded Image column holds: bytes and the path they came from."""
        if isinstance(value, str):
            return value, self._root / value
        if isinstance(value, bytes):
            return f"row {index}", Encoded(value, f"row {index}")
        if value is None:
            return f"row {index}", Encoded(b"", f"row {index}")
        path = value.get("path") or ""
        key = f"row {index}" + (f" ({path})" if path else "")
        if value.get("bytes") is None:
            return key, self._root / path
        return key, Encoded(value["bytes"], key)


def _look(rows: Any, columns: Columns) -> tuple[np.ndarray, dict[str, int]]:
    """The numbers of the rows whose texts can be used, and the others counted by kind; no picture is looked at."""
    usable, left_out, number = array("i"), LeftOut(), 0
    names = list(dict.fromkeys(name for name in (columns.caption, columns.short) if name))
    for batch in rows.select_columns(names).with_format("arrow").iter(_BATCH):
        for row in batch.to_pylist():
            fault = text_fault(row, columns)
            if fault is None:
                usable.append(number)
            else:
                left_out.add(fault)
            number += 1
    return np.frombuffer(usable, np.int32), left_out.as_dict()


def _pictures_of(rows: Any, column: str, usable: np.ndarray, root: Path) -> np.ndarray:
    """A number for each row of `usable`, equal for equal pictures: those of one path, or of the same bytes."""
    found = array("q")
    for batch in rows.select_columns([column]).with_format("arrow").iter(_BATCH):
        found.extend(_number_of(value, len(found) + place, root) for place, value in enumerate(batch.column(0)))
    numbers = np.frombuffer(found, np.int64)[usable]
    values, counts = np.unique(numbers, return_counts=True)
    for place in np.flatnonzero(np.isin(numbers, values[counts > 1])):
        value = rows[int(usable[place])][column]
        content = value.get("bytes") if isinstance(value, dict) else value
        if isinstance(content, bytes):  # of one length and with the same ends: only now are they read whole
            numbers[place] = hash(content)
    return numbers


def _number_of(value: Any, row: int, root: Path) -> int:
    """A number of a picture that few others have: of its path, or of its bytes' length and ends."""
    import pyarrow

    content, path = value, None
    if isinstance(value, pyarrow.StructScalar):
        content, path = (value["bytes"], value["path"].as_py()) if value.is_valid else (None, None)
    elif isinstance(value, pyarrow.StringScalar | pyarrow.LargeStringScalar):
        content, path = None, value.as_py()
    if content is not None and content.is_valid:
        view = memoryview(content.as_buffer())
        return hash((len(view), view[:_ENDS].tobytes(), view[-_ENDS:].tobytes()))
    return hash(os.path.normpath(root / path)) if path else hash((row,))


def read_saved(root: str | Path, *, image_root: str | Path | None = None, **columns: Any) -> SavedDataset:
    """Open the folder of a Dataset, or the `train` split (else the only one) of a DatasetDict.

    ValueError with one sentence when the library is not installed or the folder is not a saved data set.
    """
    try:
        import datasets
    except ImportError:
        raise ValueError(
            f"{root} needs Hugging Face's datasets, which is not installed; install it: pip install datasets."
        ) from None
    root = Path(root)
    try:
        rows = datasets.load_from_disk(str(root))
    except (OSError, ValueError, LookupError) as error:  # LookupError: no rows at all, or notes without their keys
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{root} is not a folder of datasets.save_to_disk, or is an empty one ({first}).") from None
    if isinstance(rows, dict):
        if "train" not in rows and len(rows) != 1:
            raise ValueError(f"{root} has the splits {', '.join(rows)}; name the folder of one, as {root}/NAME.")
        rows = rows["train"] if "train" in rows else next(iter(rows.values()))
    # Undecoded, so that a broken picture is named and counted like one of any other reader.
    for name, feature in rows.features.items():
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
    sample = [rows[index] for index in range(min(SAMPLE, len(rows)))] or [dict.fromkeys(rows.column_names)]
    chosen = choose_columns(sample, subject=f"data set {root}", **columns)
    _check_pictures(rows.features[chosen.image], chosen.image, root)
    return SavedDataset(rows, chosen, Path(image_root) if image_root is not None else root)


def _check_pictures(feature: Any, column: str, root: Path) -> None:
    """ValueError unless a column holds pictures: an Image, its path or its bytes."""
    import datasets

    readable = ("string", "large_string", "binary", "large_binary", "null")
    if isinstance(feature, datasets.Image) or getattr(feature, "dtype", None) in readable:
        return
    if isinstance(feature, dict) and {"bytes", "path"} & feature.keys():
        return
    raise ValueError(
        f"column {column} of data set {root} holds {feature} but must hold one picture per row, its path or its bytes; "
        "name another with image_column."
    )
