"""What the readers of lists share: rows by offset, pictures relative to a folder, what is left out and why."""

from __future__ import annotations

import json
import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from debias_sd.datasets.columns import Columns
from debias_sd.datasets.records import ListedRecords, Pool, Record
from debias_sd.datasets.slices import FileSlices

NO_CAPTION = "no caption"
NO_PICTURE = "missing picture"
BROKEN = "broken record"


class RowRecords:
    """Records of a file with one row each: JSON lines or a table. Rows are parsed when asked for.

    Made by `list_rows`, which has looked at each row once and kept the place of those that can be used.
    """

    expected: Pool | None = None

    def __init__(
        self,
        name: str,
        rows: FileSlices,
        *,
        parse: Callable[[bytes], Mapping[str, Any]],
        columns: Columns | None,
        root: Path,
        left_out: Mapping[str, int],
    ) -> None:
        self.name, self.rows, self.columns, self.root, self.left_out = name, rows, columns, root, left_out
        self._parse = parse

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Record:
        row = self._parse(self.rows[index])
        file = str(row[self.columns.image])
        return Record(file, self.root / file, self.columns.text_of(row), self.columns.short_of(row))


def list_rows(
    name: str,
    path: Path,
    rows: Iterable[tuple[int, int, Mapping[str, Any]]],
    *,
    parse: Callable[[bytes], Mapping[str, Any]],
    columns: Columns | None,
    root: Path,
    skip_missing: bool,
) -> RowRecords:
    """Look at every (start, size, row) once; rows without caption or picture are left out and counted.

    Without `skip_missing` nobody looks for the files, and a missing one is found when it is read.
    """
    starts, sizes, left_out = array("q"), array("i"), Counter()
    for start, size, row in rows:
        file = row.get(columns.image)
        if not columns.text_of(row):
            left_out[NO_CAPTION] += 1
        elif not file or (skip_missing and not os.path.isfile(root / str(file))):
            left_out[NO_PICTURE] += 1
        else:
            starts.append(start)
            sizes.append(size)
    slices = FileSlices(path, np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int32))
    return RowRecords(name, slices, parse=parse, columns=columns, root=root, left_out=dict(left_out))


def check_file(path: Path, *, what: str) -> None:
    """ValueError unless `path` is a file."""
    if not path.is_file():
        raise ValueError(f"{what} {path} does not exist; correct the path.")


def list_records(
    name: str, records: Iterable[Record], *, expected: Pool | None, left_out: Counter[str]
) -> ListedRecords:
    """Keep the records whose picture is there, count the others."""
    kept = []
    for record in records:
        if os.path.isfile(record.image):
            kept.append(record)
        else:
            left_out[NO_PICTURE] += 1
    return ListedRecords(name, tuple(kept), expected, dict(left_out))


def find_place(root: Path, names: Sequence[str], *, what: str) -> Path:
    """The first of `names` that is there below `root`; ValueError names them."""
    for name in names:
        if (root / name).exists():
            return root / name
    raise ValueError(f"{what}: {root} has none of {', '.join(names)}; name the folder that the set was unpacked into.")


def load_json(path: Path, *, kind: type, what: str) -> Any:
    """Read a whole JSON file of the given type; ValueError with one sentence."""
    check_file(path, what=what)
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); copy it again.") from None
    if not isinstance(value, kind):
        raise ValueError(f"{path} holds a {type(value).__name__}, {what} is a {kind.__name__}; name the right file.")
    return value
