"""ShareGPT4V: one JSON list of 1,246,901 records, 1.5 GB, with pictures of SAM, COCO and LLaVA's pre-training.

`{"id", "image": "coco/train2017/1.jpg", "conversations": [{"from": "human", ...}, {"from": "gpt", "value": caption}]}`.
The list is gone through once; after that an index of 29 bytes a record is memory-mapped, and a record is read from its
place in the file; rows of one picture are one record. As Long-CLIP does, the first 1,000 rows are held out of training
(`sharegpt4v-1k`). Another list of this form, as LLaVA's trainers use, is read whole (`llava`).
"""

from __future__ import annotations

import os
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from debias_sd.datasets.columns import SAMPLE, NoText, texts_of
from debias_sd.datasets.large_files import FileSlices, keep_index, pack_array, scan_json, unpack_array
from debias_sd.datasets.listing import BROKEN, NO_CAPTION, NO_PICTURE, NOT_UTF8, check_file, group_rows, places_of
from debias_sd.datasets.records import Pool, Record
from debias_sd.datasets.row_files import TURNS, check_form
from debias_sd.text import encoding_of_file, parse_json

HELD_OUT = 1000
_VERSION = 2
PARTS = {"sharegpt4v": slice(HELD_OUT, None), "sharegpt4v-1k": slice(HELD_OUT), "llava": slice(None)}
_INDEX = np.dtype([("start", "<i8"), ("size", "<i4"), ("folder", "<i4"), ("name", "<u8"), ("state", "u1")])


class ShareGpt4v:
    """The records that can be used, in the order of the file.

    `chosen` [rows] are the rows of the list that count, record by record; `bounds` as in `listing.RowRecords`.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        index: np.ndarray,
        *,
        chosen: np.ndarray,
        bounds: np.ndarray | None,
        root: Path,
        left_out: dict[str, int],
    ) -> None:
        self.name, self.path, self.root, self.left_out = name, path, root, left_out
        self.expected = Pool(HELD_OUT, HELD_OUT) if name == "sharegpt4v-1k" else None
        self._index, self._chosen, self._bounds = index, chosen, bounds
        self._encoding = encoding_of_file(path).name
        self._rows = FileSlices(path, index["start"], index["size"])

    def __len__(self) -> int:
        return len(self._chosen) if self._bounds is None else len(self._bounds) - 1

    def __getitem__(self, index: int) -> Record:
        places = self._chosen[list(places_of(self._bounds, index, len(self)))]
        rows = [parse_json(self._rows[int(place)].decode(self._encoding)) for place in places]
        captions = dict.fromkeys(text for row in rows for text in captions_of(row))
        return Record(rows[0]["image"], self.root / rows[0]["image"], tuple(captions))

    def __getstate__(self) -> dict[str, Any]:
        """A worker process maps the index itself: 4 bytes a record travel, not 29."""
        return self.__dict__ | {"_index": pack_array(self._index), "_rows": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._index = unpack_array(state["_index"])
        self._rows = FileSlices(self.path, self._index["start"], self._index["size"])


def captions_of(row: dict[str, Any]) -> tuple[str, ...]:
    """The text of the first turn of `gpt`, line breaks as spaces; none without such a turn. NoText for others."""
    for turn in row[TURNS]:
        if turn["from"] == "gpt":
            return texts_of(turn["value"])
    return ()


def read_sharegpt4v(
    path: str | Path, *, name: str = "sharegpt4v", image_root: str | Path | None = None, skip_missing: bool = False
) -> ShareGpt4v:
    """Open the file; pictures lie relative to `image_root`, by default the file's folder.

    `name` is one of PARTS: all but the first 1,000 rows, these alone, or all. `skip_missing` leaves out, and counts
    by the first part of their path (sam, coco, llava), the rows whose picture is not there. ValueError when the file
    is not a whole list, or has none of the keys.
    """
    path, part = Path(path), PARTS[name]
    check_file(path, what="ShareGPT4V's file")
    root = Path(image_root) if image_root is not None else path.parent
    index, notes = keep_index(path, "records", key=("sharegpt4v", _VERSION), build=lambda: _build_index(path))
    usable = index["state"] == 0
    left_out = {reason: int((index["state"][part] == n).sum()) for n, reason in enumerate(notes["kinds"], start=1)}
    if skip_missing:
        missing = usable & find_missing(path, root, index, notes["folders"])
        usable &= ~missing
        left_out |= _by_prefix(index["folder"][part][missing[part]], notes["folders"])
    chosen = np.arange(len(index), dtype=np.int32)[part][usable[part]]
    # A number for each picture: folders are counted, names are hashes already.
    pictures = index["name"][chosen] ^ (index["folder"][chosen].astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))
    order, bounds = group_rows(pictures)
    if name == "sharegpt4v":
        left_out["held out"] = min(HELD_OUT, len(index))
    left_out = {reason: count for reason, count in left_out.items() if count}
    chosen = chosen if order is None else chosen[order]
    return ShareGpt4v(name, path, index, chosen=chosen, bounds=bounds, root=root, left_out=left_out)


def _by_prefix(folders: np.ndarray, names: list[str]) -> dict[str, int]:
    """Missing pictures by the first part of their path."""
    counts: Counter[str] = Counter()
    for folder, count in zip(*np.unique(folders, return_counts=True), strict=True):
        counts[f"{NO_PICTURE} of {names[folder].split('/')[0] or 'the folder itself'}"] += int(count)
    return dict(counts)


def _build_index(path: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Go through the whole list once: an `_INDEX` row a record, and the folders and kinds of fault that it counts."""
    blocks, rows, folders, states, first = [], [], {"": 0}, {None: 0}, []
    places: dict[str, str] = {}
    for start, size, row, fault in scan_json(path):
        if len(first) < SAMPLE:
            first.append(row)
        folder, name, state = _describe(row) if fault is None else ("", "", NOT_UTF8)
        if fault is not None:
            places.setdefault(NOT_UTF8, f" (first: byte {fault:,} of {path.name})")
        number = states.setdefault(state, len(states))
        rows.append((start, size, folders.setdefault(folder, len(folders)), _hash(name), number))
        if len(rows) == 1 << 16:
            blocks, rows = [*blocks, np.array(rows, _INDEX)], []
    check_form(path, first, (TURNS,))
    kinds = [kind + places.get(kind, "") for kind in states if kind]
    return np.concatenate([*blocks, np.array(rows, _INDEX)]), {"folders": list(folders), "kinds": kinds}


def _describe(row: Any) -> tuple[str, str, str | None]:
    """Folder and name of a record's picture, and the kind of its fault or None."""
    folder = file = ""
    try:
        if row["image"] and not row["image"].endswith("/"):
            folder, _, file = os.path.normpath(row["image"]).rpartition("/")
            return folder, file, None if captions_of(row) else NO_CAPTION
    except NoText as error:
        return folder, file, str(error)
    except (TypeError, KeyError, AttributeError):  # no object, or a part of it is missing or of another type
        pass
    return "", "", BROKEN


def _hash(name: str) -> int:
    return int.from_bytes(blake2b(name.encode("utf-8", "replace"), digest_size=8).digest(), "little")


def find_missing(path: Path, root: Path, index: np.ndarray, folders: list[str]) -> np.ndarray:
    """Which records have no picture under `root`: bool [records].

    Folders are listed, files are not asked for one by one, and the answer is kept as long as no folder changes: 1.2 M
    questions to a network disk would take longer than the rest of the start.
    """
    times = [_time(root / folder) for folder in folders]

    def build() -> tuple[np.ndarray, dict[str, Any]]:
        missing = np.ones(len(index), bool)
        order = np.argsort(index["folder"], kind="stable")
        bounds = np.searchsorted(index["folder"][order], np.arange(len(folders) + 1))
        for number, folder in enumerate(folders):
            mine = order[bounds[number] : bounds[number + 1]]
            if len(mine) and times[number] is not None:
                there = np.fromiter((_hash(name) for name in os.listdir(root / folder)), np.uint64)
                missing[mine] = ~np.isin(index["name"][mine], there)
        return missing, {"root": str(root)}

    return keep_index(path, "missing", key=(_VERSION, root.resolve(), *times), build=build)[0]


def _time(folder: Path) -> int | None:
    """When the folder last changed, or None when it is not there."""
    try:
        return folder.stat().st_mtime_ns
    except (OSError, ValueError):  # ValueError: a NUL in a name
        return None
