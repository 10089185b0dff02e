"""WebDataset shards: tar archives in which `000123.jpg` and `000123.txt` (or `.json`) follow each other.

Samples are addressed by number, through an index of the archives that is made once (84 bytes a sample, memory-mapped).
A sequential reader would need less disk seeking, but which sample a process sees would then depend on the number of
processes and workers, and a resumed run would have to read again up to its place. Here every process reads its own
rows of one global batch, from any shard; `blocks` lets the order of an epoch stay within a few shards at a time, so
that the nodes of a cluster read the same archives at the same time. Archives must lie on a disk (a shared one too).
"""

from __future__ import annotations

import glob
import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from debias_sd.datasets.columns import Columns, fold
from debias_sd.datasets.large_files import FileSlices, keep_index, pack_array, unpack_array
from debias_sd.datasets.listing import places_of
from debias_sd.datasets.records import Piece, Pool, Record
from debias_sd.datasets.shard_index import build_index
from debias_sd.text import decode_text, parse_json

_VERSION = 2
_OPEN = 64  # archives that are kept open


class Shards:
    """The samples that have a picture and a text, shard by shard; `blocks` is the number of samples of each shard.

    A row of the index is a text with its picture; `text_size` is 0 where the captions are those of the JSON. Rows of
    one picture stand together and are one record.
    """

    name = "shards"
    expected: Pool | None = None

    def __init__(
        self,
        paths: list[Path],
        index: np.ndarray,
        *,
        columns: Columns | None,
        left_out: dict[str, int],
        keys: list[str],
    ) -> None:
        self.paths, self.left_out, self.keys, self._index, self._columns = paths, left_out, keys, index, columns
        first = np.ones(len(index), bool)
        first[1:] = (index["shard"][1:] != index["shard"][:-1]) | (index["image"][1:] != index["image"][:-1])
        starts = np.flatnonzero(first)
        self._bounds = None if len(starts) == len(index) else np.append(starts, len(index)).astype(np.int32)
        self.blocks = np.bincount(index["shard"][starts], minlength=len(paths))
        self._files: dict[tuple[int, str], FileSlices] = {}

    def __len__(self) -> int:
        return len(self._index) if self._bounds is None else len(self._bounds) - 1

    def __getitem__(self, index: int) -> Record:
        captions: dict[str, None] = {}
        short = None
        for place in places_of(self._bounds, index, len(self)):
            row = self._index[place]
            values = parse_json(self._text(place, "json")) if row["json_size"] else {}
            texts = (fold(self._text(place, "text")),) if row["text_size"] else self._columns.text_of(values)
            captions |= dict.fromkeys(texts)
            short = short or (self._columns.short_of(values) if self._columns else None)
        row = self._index[places_of(self._bounds, index, len(self))[0]]
        path, name = self.paths[int(row["shard"])], row["name"].decode("utf-8", "replace")
        image = Piece(path, int(row["image"]), int(row["image_size"]), name)
        return Record(f"{path.name}:{name}", image, tuple(captions), short)

    def _text(self, place: int, member: str) -> str:
        """The text file or the JSON of a row of the index."""
        shard = int(self._index["shard"][place])
        if (shard, member) not in self._files:
            if len(self._files) >= _OPEN:
                self._files.clear()
            slices = FileSlices(self.paths[shard], self._index[member], self._index[f"{member}_size"])
            self._files[shard, member] = slices
        return decode_text(self._files[shard, member][place], self.paths[shard])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": pack_array(self._index), "_files": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._index = unpack_array(state["_index"])


def read_shards(
    pattern: str | Path, *, caption_column: str | None = None, short_caption_column: str | None = None
) -> Shards:
    """Open the archives that `pattern` names: a file, a folder, a glob, or `name-{000..123}.tar`.

    The columns are names in a sample's JSON. A caption column that is named is read even where a `.txt` stands beside
    the JSON. ValueError when there are no archives, or one is compressed, damaged or not an archive, and when no JSON
    has a named column.
    """
    paths = find_shards(str(pattern))
    times = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    given = (caption_column, short_caption_column)
    index, notes = keep_index(
        paths[0], "samples", key=(_VERSION, *given, *times), build=lambda: build_index(str(pattern), paths, *given)
    )
    columns = None if notes["columns"] is None else Columns(None, *notes["columns"])
    return Shards(paths, index, columns=columns, left_out=notes["left_out"], keys=notes["keys"])


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
