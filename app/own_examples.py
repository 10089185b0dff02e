"""The operator's own example prompts (`--examples FILE`), by title.

The file is one that `debias_sd.prompts.files` reads. A title is the prompt's id where the file gives one, or its first
words; it is text: the page never takes it for markup.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from app.settings import PROMPT_CHARACTERS
from debias_sd.prompts.files import read_prompt_file

_TITLE = 60  # characters


def read_examples(path: str | Path) -> dict[str, str]:
    """Prompts by title, in the file's order; ValueError with one sentence for a fault of the file or a long prompt."""
    prompts = read_prompt_file(path).prompts
    for number, prompt in enumerate(prompts, start=1):
        if len(prompt.text) > PROMPT_CHARACTERS:
            raise ValueError(
                f"prompt {number} of {path} has {len(prompt.text):,} characters, allowed are {PROMPT_CHARACTERS:,}; "
                "shorten it."
            )
    in_folder = Path(path).expanduser().is_dir()
    has_id = [in_folder or prompt.row.get("id") is not None for prompt in prompts]
    return titled((p.id if named else p.text, p.text) for named, p in zip(has_id, prompts, strict=True))


def titled(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Prompts by title on one line; of those with one title the second gets a number.

    >>> titled([("A", "one"), ("A", "two"), ("A", "three")])
    {'A': 'one', 'A (2)': 'two', 'A (3)': 'three'}
    """
    found: dict[str, str] = {}
    numbers: dict[str, int] = {}  # the last one that a title has, so that none is tried twice
    for title, prompt in pairs:
        short = name = _shortened(title) or "Untitled"
        while name in found:
            numbers[short] = numbers.get(short, 1) + 1
            name = f"{short} ({numbers[short]})"
        found[name] = prompt
    return found


def _shortened(title: str) -> str:
    """`title` on one line of at most 60 characters, cut behind a word where there is one.

    >>> _shortened("photo, detailed, 8k, A sunlit kitchen with a long wooden table stands")
    'photo, detailed, 8k, A sunlit kitchen with a long wooden …'
    """
    line = " ".join(title.split())
    if len(line) <= _TITLE:
        return line
    words, space, _ = line[: _TITLE - 1].rpartition(" ")
    return f"{words} …" if space else f"{line[: _TITLE - 2]} …"
