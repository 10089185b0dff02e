"""WebDataset shards: tar archives in which `000123.jpg` and `000123.txt` (or `.json`) follow each other.

Samples are addressed by number, through an index of the archives that is made once (56 bytes a sample, memory-mapped).
A sequential reader would need less disk seeking, but which sample a process sees would then depend on the number of
processes and workers, and a resumed run would have to read again up to its place. Here every process reads its own
rows of one global batch, from any shard; `blocks` lets the order of an epoch stay within a few shards at a time, so
that the nodes of a cluster read the same archives at the same time. Archives must lie on a disk (a shared one too).
"""

from __future__ import annotations

import glob
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from debias_sd.datasets.columns import Columns, fold
from debias_sd.datasets.folder import SUFFIXES
from debias_sd.datasets.index_files import keep_index, pack_array, unpack_array
from debias_sd.datasets.listing import NO_CAPTION, NO_PICTURE
from debias_sd.datasets.records import Piece, Pool, Record
from debias_sd.datasets.slices import FileSlices

_VERSION = 1
_NAME = 40  # bytes of a sample's name that the index keeps, the last ones
_OPEN = 64  # archives that are kept open
_INDEX = np.dtype(
    [("shard", "<i4"), ("image", "<i8"), ("image_size", "<i4"), ("text", "<i8"), ("text_size", "<i4")]
    + [("is_json", "?"), ("name", f"S{_NAME}")]
)


class Shards:
    """The samples that have a picture and a text, shard by shard; `blocks` is the number of samples of each shard."""

    name = "shards"
    expected: Pool | None = None

    def __init__(self, paths: list[Path], index: np.ndarray, *, columns: Columns, left_out: dict[str, int]) -> None:
        self.paths, self.left_out, self._index, self._columns = paths, left_out, index, columns
        self.blocks = np.bincount(index["shard"], minlength=len(paths))
        self._files: dict[int, FileSlices] = {}

    def __len__(self) -> int:
        return len(self._index)

    def __getitem__(self, index: int) -> Record:
        row = self._index[index]
        shard = int(row["shard"])
        path, name = self.paths[shard], row["name"].decode("utf-8", "replace")
        if shard not in self._files:
            if len(self._files) == _OPEN:
                self._files.clear()
            self._files[shard] = FileSlices(path, self._index["text"], self._index["text_size"])
        content = self._files[shard][index].decode("utf-8", "replace")
        captions, short = self._texts_of(content) if row["is_json"] else ((fold(content),), None)
        image = Piece(path, int(row["image"]), int(row["image_size"]), name)
        return Record(f"{path.name}:{name}", image, captions, short)

    def _texts_of(self, content: str) -> tuple[tuple[str, ...], str | None]:
        """Captions and short caption of a sample's JSON; none where it is no object."""
        try:
            row = json.loads(content)
        except ValueError:
            return (), None
        return (self._columns.text_of(row), self._columns.short_of(row)) if isinstance(row, dict) else ((), None)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": pack_array(self._index), "_files": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._index = unpack_array(state["_index"])


def read_shards(
    pattern: str | Path, *, caption_column: str | None = None, short_caption_column: str | None = None
) -> Shards:
    """Open the archives that `pattern` names: a file, a folder, a glob, or `name-{000..123}.tar`.

    The columns are the names in a sample's JSON, `caption` and `caption_short` unless others are given. ValueError when
    there are none, or one is compressed, damaged or no archive.
    """
    paths = find_shards(str(pattern))
    times = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    index, notes = keep_index(paths[0], "samples", key=(_VERSION, *times), build=lambda: _build_index(paths))
    columns = Columns("", caption_column or "caption", short_caption_column or "caption_short")
    return Shards(paths, index, columns=columns, left_out=notes["left_out"])


def find_shards(pattern: str) -> list[Path]:
    """The archives that `pattern` names, in the order of their names; ValueError when one is not there."""
    ranges = re.findall(r"\{(\d+)\.\.(\d+)\}", pattern)
    if ranges:
        numbers = [[f"{n:0{len(low)}}" for n in range(int(low), int(high) + 1)] for low, high in ranges]
        form = re.sub(r"\{\d+\.\.\d+\}", "{}", pattern)
        paths = [Path(form.format(*chosen)) for chosen in product(*numbers)]
    elif Path(pattern).is_dir():
        paths = sorted(Path(pattern).glob("*.tar"))
    else:
        paths = [Path(name) for name in sorted(glob.glob(pattern))]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ValueError(f"shard {missing[0] if missing else pattern} does not exist; correct the pattern or copy it.")
    return paths


def _build_index(paths: list[Path]) -> tuple[np.ndarray, dict[str, Any]]:
    rows, left_out = [], Counter()
    for number, path in enumerate(paths):
        for name, members in _samples(path):
            image = next((members[suffix] for suffix in SUFFIXES if suffix in members), None)
            is_json = ".txt" not in members
            text = members.get(".json") if is_json else members[".txt"]
            if image is None or not text or not text[1]:
                left_out[NO_PICTURE if image is None else NO_CAPTION] += 1
            else:
                rows.append((number, *image, *text, is_json, name.encode()[-_NAME:]))
    return np.array(rows, _INDEX), {"left_out": dict(left_out)}


def _samples(path: Path) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """Yield (name, suffix -> (start, size)) of the files that stand together and have one name up to its first dot."""
    name, members = "", {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                folder, slash, file = member.name.rpartition("/")
                stem, dot, suffix = file.partition(".")
                if not member.isfile() or not dot:
                    continue
                if folder + slash + stem != name and members:
                    yield name, members
                    members = {}
                name = folder + slash + stem
                members[f".{suffix.lower()}"] = (member.offset_data, member.size)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"shard {path} is no whole plain tar archive ({error}); unpack it if it is compressed, else copy it again."
        ) from None
    if members:
        yield name, members
