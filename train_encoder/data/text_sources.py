"""Texts without pictures: what an encoder is lengthened on. Prompts or captions, one a record, read when asked for.

* `*.txt`: a text a line. A folder of them: a text a file.
* JSON lines or a JSON list of objects with `prompt`, `caption` or `text` and no picture.
* All that `datasets.names` opens: the captions alone, whose pictures need not be there.
* `shapes`: long captions of the embedded world.

A file of lines may have any size: it is looked at once, and only the places of its lines are kept, on disk.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from debias_sd.datasets.columns import IMAGE_NAMES
from debias_sd.datasets.large_files import FileSlices, keep_index, scan_json
from debias_sd.datasets.names import find_kind, open_records
from debias_sd.datasets.records import Records, describe_counts
from debias_sd.datasets.row_files import parse_object
from debias_sd.prompts.files import KEYS, read_prompt_file
from debias_sd.shapes.caption import long_caption
from debias_sd.shapes.scene import random_scene
from debias_sd.text import encoding_of_file, mend_text, parse_json, read_lines

SHAPES = "shapes"
WORLD = 1_000_000  # texts of the embedded world, each a function of the seed and its number
_VERSION = 1
_LINES = (".txt", ".jsonl", ".jsonlines", ".ndjson")


class Texts(Protocol):
    """Texts by number. `left_out`: how many the data has that cannot be used, by reason."""

    left_out: Mapping[str, int]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> str: ...


class _Listed:
    def __init__(self, texts: Sequence[str], left_out: Mapping[str, int]) -> None:
        self.texts, self.left_out = texts, left_out

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> str:
        return self.texts[index]


class _Captions:
    """The first caption of each record of a reader of pictures."""

    def __init__(self, records: Records) -> None:
        self.records, self.left_out = records, records.left_out

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> str:
        return " ".join(next((text for text in self.records[index].captions if text.strip()), "").split())


class _Lines:
    """The lines of a file, by their places in it."""

    def __init__(
        self, path: Path, parse: Callable[[str], str], places: np.ndarray, left_out: Mapping[str, int]
    ) -> None:
        self.slices = FileSlices(path, places[0], places[1])
        self.parse, self.left_out, self._encoding = parse, left_out, encoding_of_file(path).name

    def __len__(self) -> int:
        return len(self.slices)

    def __getitem__(self, index: int) -> str:
        return mend_text(self.parse(self.slices[index].decode(self._encoding)))


class _World:
    left_out: Mapping[str, int] = {}

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return WORLD

    def __getitem__(self, index: int) -> str:
        rng = random.Random(f"{self.seed}/{index}")
        return long_caption(random_scene(rng), rng).text


def open_texts(name: str, *, seed: int = 0) -> Texts:
    """Open what `name` names, `KIND:PATH` or a path alone; `seed` is that of the embedded world's.

    Raises ValueError with one sentence when nothing is there or nothing of it is text.
    """
    texts = _World(seed) if name == SHAPES else _open(name)
    if not len(texts):
        reasons = describe_counts(texts.left_out) or "it is empty"
        raise ValueError(f"{name} holds no text ({reasons}); give a file with one text a line, or JSON lines.")
    return texts


def _open(name: str) -> Texts:
    path = Path(name).expanduser()
    if path.is_dir() and find_kind(str(path)) == "folder" and not any(path.glob("metadata.*")):
        if any(path.glob("*.txt")):
            return _listed(path)
    if path.is_file() and path.suffix.lower() in (*_LINES, ".json"):
        first = next((line for _, _, line, _ in read_lines(path) if line.strip()), "").strip()
        if path.suffix.lower() == ".txt" or (first.startswith("{") and _is_prompt(first)):
            return _open_lines(path)
        if first.startswith("[") and _is_prompt(next((element.value for element in scan_json(path)), None)):
            return _listed(path)
    return _Captions(open_records(name, skip_missing=False))


def _listed(path: Path) -> _Listed:
    found = read_prompt_file(path)
    return _Listed(found.texts, {"empty": found.empty} if found.empty else {})


def _is_prompt(row: Any) -> bool:
    """Whether an object of a file is a prompt: it has a text, and no picture that another reader would want."""
    if isinstance(row, str):
        try:
            row = parse_json(row)
        except ValueError:
            return False  # the reader of pictures says what is wrong with it
    has_text = isinstance(row, dict) and any(isinstance(row.get(key), str) for key in KEYS)
    return has_text and not any(key in row for key in IMAGE_NAMES)


def _open_lines(path: Path) -> _Lines:
    is_plain = path.suffix.lower() == ".txt"
    parse = _plain if is_plain else _text_of

    def build() -> tuple[np.ndarray, dict[str, Any]]:
        places, empty, broken = [], 0, 0
        for number, (start, size, line, fault) in enumerate(read_lines(path), start=1):
            if fault is not None:
                broken += 1
            elif not line.strip():
                empty += 1
            else:
                if not is_plain:
                    _check_row(path, number, line)
                places.append((start, size))
        counts = {"empty line": empty, "not UTF-8 text": broken}
        return np.array(places, np.int64).reshape(-1, 2).T.copy(), {k: v for k, v in counts.items() if v}

    places, left_out = keep_index(path, "texts", key=(_VERSION, parse.__name__), build=build)
    return _Lines(path, parse, places, left_out)


def _plain(line: str) -> str:
    return " ".join(line.split())


def _text_of(line: str) -> str:
    row = json.loads(line)
    return " ".join(next(row[key] for key in KEYS if isinstance(row.get(key), str)).split())


def _check_row(path: Path, number: int, line: str) -> None:
    row = parse_object(line, number=number, path=path)
    if not any(isinstance(row.get(key), str) for key in KEYS):
        raise ValueError(f"line {number} of {path} has no text in {', '.join(KEYS)}; add one of these.")
