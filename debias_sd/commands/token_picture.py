"""What a text encoder reads of a prompt, as lines for a terminal: a bar for each length, and the text after it."""

import os
import sys
import textwrap
from dataclasses import dataclass
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from debias_sd.commands.terminal import shows_unicode
from debias_sd.counts import count_of

if TYPE_CHECKING:
    from debias_sd.prompts.token_report import Reading, TokenReport

SMALLEST, LARGEST = 40, 120  # columns
LOST_LINES = 6  # of lost text; JSON has all of it
_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True)
class Screen:
    """How wide a terminal is, and whether it shows block characters and colours."""

    width: int
    blocks: bool
    colour: bool

    @classmethod
    def of_output(cls) -> "Screen":
        """Return that of standard output: NO_COLOR and other encodings than UTF-8 mean plain ASCII bars."""
        plain = bool(os.environ.get("NO_COLOR")) or not shows_unicode()
        width = max(SMALLEST, min(LARGEST, get_terminal_size().columns))
        return cls(width, blocks=not plain, colour=not plain and sys.stdout.isatty())


def picture(name: str, report: "TokenReport", screen: Screen, *, own: int | None = None, words: bool = False) -> str:
    """Return the lines of one encoder, which by itself reads `own` tokens; with `words`, each word with its tokens."""
    lines = [f"{name}: {count_of(report.tokens, 'token')}" + (f", reads {own} at once" if own else "")]
    said = {length: _said(reading) for length, reading in report.readings.items()}
    room = max(8, screen.width - 7 - max(map(len, said.values())))
    for length, reading in report.readings.items():
        lines.append(f"{length:>4} [{_bar(reading, report.tokens, screen, room=room)}]{said[length]}")
        if reading.lost_tokens:
            lines += _indented(f"lost at {length}: {reading.lost.strip()}", screen, most=LOST_LINES)
        if len(reading.windows) > 1:
            for number, window in enumerate(reading.windows, 1):
                text = f"window {number}, {count_of(window.tokens, 'token')}: {' '.join(window.text.split())}"
                lines += _indented(text, screen, most=1)
    if words:
        listed = " ".join(f"{word.text}({len(word.parts)})" for word in report.words)
        lines += _indented(f"tokens of each word: {listed}", screen, most=None)
    if report.tags:
        lines += _indented(f"left out: {' '.join(report.tags)}", screen, most=LOST_LINES)
    return "\n".join(lines)


def _said(reading: "Reading") -> str:
    return f" reads {reading.kept_tokens}, loses {reading.lost_tokens or 'nothing'}"


def _bar(reading: "Reading", tokens: int, screen: Screen, *, room: int) -> str:
    """Return a bar of `room` columns, which are the whole prompt: "####----". A loss is always seen."""
    full = room if not reading.lost_tokens else min(room - 1, round(room * reading.kept_tokens / tokens))
    read, lost = ("█", "░") if screen.blocks else ("#", "-")
    kept, gone = read * full, lost * (room - full)
    if screen.colour:
        kept, gone = f"{_GREEN}{kept}{_PLAIN}", f"{_RED}{gone}{_PLAIN}" if gone else ""
    return kept + gone


def _indented(text: str, screen: Screen, *, most: int | None) -> list[str]:
    """Return the text in lines as wide as the screen; at most that many, "..." for the rest."""
    # Only what can be shown is wrapped: a prompt may be a whole book.
    shown = text if most is None else text[: screen.width * most]
    indent = " " * 5
    return textwrap.wrap(
        shown if len(shown) == len(text) else f"{shown} ...",
        screen.width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        max_lines=most,
        placeholder=" ...",
    )
