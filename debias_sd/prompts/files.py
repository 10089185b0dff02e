"""Files of prompts or captions, as people and benchmarks have them: a text file, JSON lines, a folder of text files.

* `*.txt`: one prompt a line; its number, from 0, is its id.
* `*.jsonl`, `*.json`: an object a line (or one list of them) with `prompt`, `caption` or `text`; the id is `id`, or
  the line's number. GenEval's evaluation_metadata.jsonl is one of these.
* a folder: every `*.txt` in it is one prompt, its name is the id (DPG-Bench's own form).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from debias_sd.text import parse_json, read_text

KEYS = ("prompt", "caption", "text")
_NUMBERS = re.compile(r"(\d+)")


@dataclasses.dataclass(frozen=True)
class ListedPrompt:
    """One prompt; `row` is the whole JSON object that it came from, empty for plain text."""

    id: str
    text: str
    row: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PromptFile:
    """The prompts in order, and how many were empty (left out) or stand there a second time (kept)."""

    prompts: tuple[ListedPrompt, ...]
    empty: int

    @property
    def texts(self) -> list[str]:
        return [prompt.text for prompt in self.prompts]

    @property
    def repeated(self) -> int:
        return len(self.prompts) - len(set(self.texts))

    def first(self, count: int | None) -> PromptFile:
        """The first `count` prompts, all of them for None."""
        return dataclasses.replace(self, prompts=self.prompts[:count])


def read_prompt_file(path: str | Path) -> PromptFile:
    """Read prompts; ValueError with one sentence where the file is missing, damaged, not text or empty."""
    from debias_sd.tokens import check_text  # loads torch, which the help of commands must not

    path = Path(path).expanduser()
    rows = list(_rows_of(path))
    prompts = tuple(ListedPrompt(name, text.strip(), row) for name, text, row in rows if text.strip())
    for prompt in prompts:
        try:
            check_text(prompt.text)
        except ValueError as error:
            raise ValueError(f"prompt {prompt.id} of {path} cannot be read: {error}") from None
    if not prompts:
        raise ValueError(f"{path} holds no prompt; write one a line, or JSON lines with {', '.join(KEYS)}.")
    return PromptFile(prompts, empty=len(rows) - len(prompts))


def _rows_of(path: Path) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    if path.is_dir():
        for file in sorted(path.glob("*.txt"), key=lambda file: _natural(file.stem)):
            yield file.stem, " ".join(read_text(file).split()), {}
        return
    text = read_text(path, what="file of prompts")
    if path.suffix.lower() in (".jsonl", ".json", ".jsonlines"):
        for number, row in enumerate(_objects_of(path, text)):
            yield _from_object(path, number, row)
        return
    for number, line in enumerate(text.split("\n")[: -1 if text.endswith("\n") else None]):
        yield str(number), line, {}


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort key that has 9 before 10."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in _NUMBERS.split(name)]


def _objects_of(path: Path, text: str) -> list[Any]:
    """The objects of JSON lines, or of a file that is one JSON list."""
    number = 0
    try:
        if text.lstrip().startswith("["):
            return parse_json(text)
        rows = []
        for line in text.split("\n"):  # not splitlines(): JSON may hold its other line breaks as they are
            number += 1
            rows += [parse_json(line)] if line.strip() else []
    except ValueError:
        where = f"line {number} of {path}" if number else str(path)
        raise ValueError(f"{where} is not JSON; correct it, or give a text file with one prompt a line.") from None
    return rows


def _from_object(path: Path, number: int, row: Any) -> tuple[str, str, Mapping[str, Any]]:
    found = [row[key] for key in KEYS if isinstance(row.get(key), str)] if isinstance(row, dict) else []
    if not found:
        raise ValueError(f"object {number + 1} of {path} has no text in {', '.join(KEYS)}; add one of these.")
    return str(row.get("id", number)), found[0], row
