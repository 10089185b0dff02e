"""What the readers of lists share: rows by offset, all rows of a picture as one record, what is left out and why."""

from __future__ import annotations

import dataclasses
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from debias_sd.datasets.columns import Columns, NoText, check_text
from debias_sd.datasets.large_files import FileSlices
from debias_sd.datasets.records import ListedRecords, Picture, Pool, Record
from debias_sd.text import parse_json, read_text

NO_CAPTION = "no caption"
NO_PICTURE = "missing picture"
BROKEN = "broken record"
NOT_UTF8 = "not UTF-8 text"


class LeftOut:
    """What a reader leaves out, counted by kind; a kind that has a place is named with the place of its first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, place: str | None = None, *, count: int = 1) -> None:
        """Count `count` more of a kind."""
        self._counts[kind] += count
        if place is not None:
            self._first.setdefault(kind, place)

    def as_dict(self) -> dict[str, int]:
        """`{"no caption": 2, "not UTF-8 text (first: byte 12 of a.csv)": 1}`."""
        places = {kind: f" (first: {place})" for kind, place in self._first.items()}
        return {kind + places.get(kind, ""): count for kind, count in self._counts.items() if count}


class Row(NamedTuple):
    """A row of a list as it is looked at once: its place, and what is in it or the fault that makes it unusable."""

    start: int
    size: int
    values: Mapping[str, Any]
    fault: str | None = None
    place: str | None = None  # of the fault


class RowRecords:
    """Records of a file with a row each, or several of one picture: JSON lines, a table, a JSON list.

    Made by `list_rows`, which has looked at each row once and kept the places of those that can be used. Rows are
    parsed when asked for. `bounds` [records + 1] says where each record's rows begin; None where each has one.
    """

    expected: Pool | None = None

    def __init__(
        self,
        name: str,
        rows: FileSlices,
        *,
        bounds: np.ndarray | None,
        parse: Callable[[bytes], Mapping[str, Any]],
        columns: Columns | None,
        root: Path,
        left_out: Mapping[str, int],
    ) -> None:
        self.name, self.rows, self.columns, self.root, self.left_out = name, rows, columns, root, left_out
        self.keys = columns.found if columns else ()
        self._parse, self._bounds = parse, bounds

    def __len__(self) -> int:
        return len(self.rows) if self._bounds is None else len(self._bounds) - 1

    def __getitem__(self, index: int) -> Record:
        rows = [self._parse(self.rows[place]) for place in places_of(self._bounds, index, len(self))]
        file = rows[0][self.columns.image]
        return join_record(file, self.root / file, self.columns, rows)


def join_record(key: str, image: Picture, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> Record:
    """One record of all rows that name one picture: their captions, each once, and the first short one."""
    captions = dict.fromkeys(text for row in rows for text in columns.text_of(row))
    short = next((short for row in rows if (short := columns.short_of(row))), None)
    return Record(key, image, tuple(captions), short)


def group_rows(pictures: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Rows that name one picture as one record, records in the order of their first rows.

    `pictures` [rows] holds equal values for equal pictures. Returns (order int32 [rows], the rows record by record;
    bounds int32 [records + 1]), or None twice where no picture comes twice.
    """
    _, first, which = np.unique(pictures, return_index=True, return_inverse=True)
    if len(first) == len(pictures):
        return None, None
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    record = rank[which]
    bounds = np.concatenate([[0], np.cumsum(np.bincount(record))])
    return np.argsort(record, kind="stable").astype(np.int32), bounds.astype(np.int32)


def places_of(bounds: np.ndarray | None, index: int, count: int) -> range:
    """The places of the rows of record `index` among `count`; IndexError after the last."""
    index = range(count)[index]
    return range(index, index + 1) if bounds is None else range(int(bounds[index]), int(bounds[index + 1]))


def list_rows(
    name: str,
    path: Path,
    rows: Iterable[Row],
    *,
    parse: Callable[[bytes], Mapping[str, Any]],
    columns: Columns | None,
    root: Path,
    skip_missing: bool,
) -> RowRecords:
    """Look at every row once; rows that are faulty or lack a caption or their picture are left out and counted.

    Without `skip_missing` nobody looks for the files, and a missing one is found when it is read.
    """
    starts, sizes, pictures, left_out = array("q"), array("q"), array("q"), LeftOut()
    base, last = os.path.normpath(root), None
    for row in rows:
        fault, place = row.fault, row.place
        if fault is None:
            fault = row_fault(row.values, columns)
        if fault is None:
            file = row.values[columns.image]
            if file != last:  # rows of one picture mostly stand together: look for it once
                last, picture = file, os.path.join(base, file)
                there = not skip_missing or os.path.isfile(picture)
                number = hash(os.path.normpath(picture) if "/." in picture or "//" in picture else picture)
            fault = None if there else NO_PICTURE
        if fault is not None:
            left_out.add(fault, place)
            continue
        starts.append(row.start)
        sizes.append(row.size)
        pictures.append(number)
    order, bounds = group_rows(np.frombuffer(pictures, np.int64))
    places, lengths = np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int64).astype(np.int32)
    if order is not None:
        places, lengths = places[order], lengths[order]
    slices = FileSlices(path, places, lengths)
    return RowRecords(name, slices, bounds=bounds, parse=parse, columns=columns, root=root, left_out=left_out.as_dict())


def row_fault(row: Mapping[str, Any], columns: Columns | None) -> str | None:
    """The kind of fault that makes a row unusable, or None; a picture's name is not looked for on disk."""
    if columns is None:  # no row has a column
        return BROKEN
    fault = text_fault(row, columns)
    if fault is not None:
        return fault
    try:
        file = row.get(columns.image)
        return None if file is not None and check_text(file, "picture") else NO_PICTURE
    except NoText as error:
        return str(error)


def text_fault(row: Mapping[str, Any], columns: Columns) -> str | None:
    """The kind of fault that the captions of a row have, or None."""
    try:
        columns.short_of(row)
        return None if columns.text_of(row) else NO_CAPTION
    except NoText as error:
        return str(error)


def check_file(path: Path, *, what: str) -> None:
    """ValueError unless `path` is a file."""
    if path.is_dir():
        raise ValueError(f"{what} {path} is a folder; name the file.")
    if not path.is_file():
        raise ValueError(f"{what} {path} does not exist; correct the path.")


def list_records(name: str, records: Iterable[Record], *, expected: Pool | None, left_out: LeftOut) -> ListedRecords:
    """Keep the records with a caption whose picture is there, count the others; those of one picture become one."""
    kept: dict[str, Record] = {}
    for record in records:
        place = os.path.normpath(record.image)
        if not any(record.captions):
            left_out.add(NO_CAPTION)
        elif place in kept:
            kept[place] = dataclasses.replace(kept[place], captions=kept[place].captions + record.captions)
        elif os.path.isfile(record.image):
            kept[place] = record
        else:
            left_out.add(NO_PICTURE)
    return ListedRecords(name, tuple(kept.values()), expected, left_out.as_dict())


def find_place(root: Path, names: Sequence[str], *, what: str) -> Path:
    """The first of `names` that is there below `root`; ValueError names them."""
    for name in names:
        if (root / name).exists():
            return root / name
    raise ValueError(f"{what}: {root} has none of {', '.join(names)}; name the folder that the set was unpacked into.")


def load_json(path: Path, *, kind: type, what: str) -> Any:
    """Read a whole JSON file of the given type; ValueError with one sentence."""
    check_file(path, what=what)
    text = read_text(path, what=what)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); copy it again.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path} holds a {type(value).__name__} but {what} is a {kind.__name__}; name the right file.")
    return value
