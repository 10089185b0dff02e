"""Text in pictures in fonts that have its characters: Pillow's own, matplotlib's where it is, then the system's.

Pillow's own font has hardly more than ASCII, and draws one box for everything else. A line is set in the first font
that has all of it, otherwise its words, otherwise its characters, each in the first font that has them; of a character
that no font has, the place is kept as a box, and the log says so once.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

_LOG = logging.getLogger("debias_sd")
_UNMAPPED = "\U0010ffff"  # no character, so that every font draws its sign for what it lacks
_STRIKES = (109, 136, 128, 160)  # pixels: the one size of a font of coloured pictures, emoji that is
_PLAIN = re.compile(r"dejavusans\.|notosans|noto ?emoji|notocoloremoji|droidsansfallback|wqy|arial|segoe|apple", re.I)
_STYLED = re.compile(r"bold|italic|oblique|mono|serif|light|thin|black|condensed|medium", re.I)
_MOST = 500  # fonts of the system that are looked through
_told: set[str] = set()  # characters of which the log has said that no font has them


class Lettering:
    """Text of one size in pixels: how long it is, and drawing it; a box where no font has a character."""

    def __init__(self, size: int) -> None:
        self.size = size

    def length(self, text: str) -> float:
        """Pixels from the start to the end of `text`."""
        return sum(self._width(font, part) for font, part in _runs(text))

    def draw(self, pen: ImageDraw.ImageDraw, place: tuple[float, float], text: str, fill: str) -> None:
        """Draw `text` with its upper left corner at `place`, as `ImageDraw.text` does."""
        x, y = place
        base = y + _loaded(None, self.size).getmetrics()[0]
        for font, part in _runs(text):
            if font == _NOWHERE:
                for number in range(len(part)):
                    left = x + number * self.size * 0.8
                    pen.rectangle((left + 1, base - self.size * 0.7, left + self.size * 0.7, base), outline=fill)
            elif (loaded := _loaded(font, self.size)).size == self.size:
                pen.text((x, base), part, fill=fill, font=loaded, anchor="ls")
            else:
                self._paste(pen, (x, base), part, loaded)
            x += self._width(font, part)

    def wrap(self, text: str, width: float, *, most: int) -> list[str]:
        """The first `most` + 1 lines of `text`, each of at most `width` pixels; a word longer than a line is cut."""
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".strip()
            if len(word) < width and self.length(longer) <= width:
                lines[-1] = longer
                continue
            while word and len(lines) <= most + 1:
                ends = itertools.takewhile(lambda end: end <= width, itertools.accumulate(map(self.length, word)))
                fits = max(1, sum(1 for _ in ends))
                lines.append(word[:fits])
                word = word[fits:]
            if len(lines) > most + 1:
                break
        return [line for line in lines if line][: most + 1] or [""]

    def _width(self, font: str | None, part: str) -> float:
        if font == _NOWHERE:
            return len(part) * self.size * 0.8
        loaded = _loaded(font, self.size)
        return loaded.getlength(part) * self.size / loaded.size

    def _paste(
        self, pen: ImageDraw.ImageDraw, place: tuple[float, float], part: str, font: ImageFont.ImageFont
    ) -> None:
        """Draw pictures of a font that has them in one size only."""
        left, top, right, bottom = font.getbbox(part, anchor="ls")
        drawn = Image.new("RGBA", (max(1, round(right - left)), max(1, round(bottom - top))))
        ImageDraw.Draw(drawn).text((-left, -top), part, font=font, anchor="ls", embedded_color=True)
        scale = self.size / font.size
        small = drawn.resize((max(1, round(drawn.width * scale)), max(1, round(drawn.height * scale))))
        pen._image.paste(small, (round(place[0] + left * scale), round(place[1] + top * scale)), small)


def note_missing(*texts: str) -> None:
    """Say in one line of the log of which characters in `texts` no font has a sign; of each once."""
    missing = {char for text in texts for font, part in _runs(text) if font == _NOWHERE for char in part} - _told
    if missing:
        _told.update(missing)
        signs = [f"{char} (U+{ord(char):04X})" if char.isprintable() else f"U+{ord(char):04X}" for char in missing]
        shown = ", ".join(sorted(signs)[:8]) + (f" and {len(signs) - 8} more characters" if len(signs) > 8 else "")
        _LOG.warning("no font on this machine has %s; a box keeps the place in the picture.", shown)


_NOWHERE = ""  # in place of a font's path; None is Pillow's own


def _runs(text: str) -> Iterator[tuple[str | None, str]]:
    """`text` in pieces, each with the font that has it."""
    whole = _font_of(text)
    if whole != _NOWHERE:
        pieces = [(whole, text)]
    else:
        pieces = [piece for word in re.findall(r"\s+|\S+", text) for piece in _pieces(word)]
        for number in range(1, len(pieces) - 1):  # words of one script stay one run: only so are they in order
            (before, _), (_, part), (after, _) = pieces[number - 1 : number + 2]
            if part.isspace() and before == after != _NOWHERE and _loaded(before, 20).size == 20:
                pieces[number] = before, part
    for font, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
        yield font, "".join(part for _, part in group)


def _pieces(word: str) -> list[tuple[str | None, str]]:
    font = _font_of(word)
    if font != _NOWHERE:
        return [(font, word)]
    pieces: list[tuple[str | None, str]] = []
    for char in word:
        is_mark = pieces and unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf")
        font = pieces[-1][0] if is_mark else _font_of(char)
        if not (is_mark and font == _NOWHERE):  # a mark on nothing is nothing
            pieces.append((font, char))
    return pieces


@functools.lru_cache(4096)
def _font_of(text: str) -> str | None:
    """The first font that has all of `text`."""
    return next((font for font in _fonts() if all(_has(font, char) for char in text)), _NOWHERE)


@functools.lru_cache(65_536)
def _has(font: str | None, char: str) -> bool:
    """Whether `font` draws `char` otherwise than what it lacks; what only joins others needs no sign."""
    if char.isspace() or unicodedata.category(char) == "Cf" or "\ufe00" <= char <= "\ufe0f":
        return True
    loaded = _loaded(font, 20)
    if loaded is None:
        return False
    signs = [loaded.getmask(sign) for sign in (char, _UNMAPPED)]
    return any(signs[0].size) and (signs[0].size, bytes(signs[0])) != (signs[1].size, bytes(signs[1]))


@functools.lru_cache(256)
def _loaded(font: str | None, size: int) -> ImageFont.FreeTypeFont | None:
    """A font in a size, or in the only one that it has; None for a file that is not a font."""
    if font is None:
        return ImageFont.load_default(size)
    for pixels in (size, *_STRIKES):
        try:
            return ImageFont.truetype(font, pixels)
        except OSError:
            continue
    return None


@functools.lru_cache(1)
def _fonts() -> tuple[str | None, ...]:
    """Pillow's own font, and the paths of others, the plainest first."""
    found = [path for folder in _folders() if folder.is_dir() for path in sorted(folder.rglob("*.[tToO][tT][fFcC]"))]
    found.sort(key=lambda path: (not _PLAIN.search(path.name), bool(_STYLED.search(path.name)), len(path.name)))
    return None, *_matplotlib_font(), *map(str, found[:_MOST])


def _matplotlib_font() -> list[str]:
    """DejaVu Sans as matplotlib brings it along; matplotlib itself is not imported."""
    spec = importlib.util.find_spec("matplotlib")
    path = Path(spec.origin).parent / "mpl-data/fonts/ttf/DejaVuSans.ttf" if spec and spec.origin else None
    return [str(path)] if path is not None and path.is_file() else []


def _folders() -> list[Path]:
    """Where Linux, macOS and Windows keep fonts."""
    home, asked = Path.home(), os.environ.get
    data = [
        asked("XDG_DATA_HOME") or home / ".local/share",
        *(asked("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":"),
    ]
    windows = [
        Path(asked("WINDIR") or "C:/Windows") / "Fonts",
        Path(asked("LOCALAPPDATA") or home) / "Microsoft/Windows/Fonts",
    ]
    mac = [Path("/System/Library/Fonts"), Path("/Library/Fonts"), home / "Library/Fonts"]
    return [*(Path(folder) / "fonts" for folder in data), home / ".fonts", *mac, *windows]
