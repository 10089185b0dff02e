"""Text as files hold it (UTF-8 with or without a byte-order mark, UTF-16 or UTF-32 with one), and as messages count it.

Everything that reads text or JSON of a user reads it here. What is not text in its own encoding, or holds a NUL byte
(UTF-16 without a mark, or no text at all), is never guessed at: `NotText` names the file and the byte.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

# UTF-32's marks before UTF-16's: FF FE 00 00 begins with FF FE.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class NotText(ValueError):
    """Bytes that are not text; `place` is the first of them, as in "byte 12 of captions.txt"."""

    def __init__(self, name: str | Path, byte: int) -> None:
        self.place = f"byte {byte:,} of {Path(name).name}"
        super().__init__(f"{name} is not UTF-8 text (byte {byte:,} cannot be read); save it as UTF-8.")


class Encoding(NamedTuple):
    """How a file is encoded: Python's name of it, and the number of bytes of its mark.

    Between `decode` and `encode` bytes that are not text survive as lone surrogates, so that places stay exact.
    """

    name: str = "utf-8"
    mark: int = 0

    @property
    def errors(self) -> str:
        """Python's name for how bytes that are not text become lone surrogates."""
        return "surrogateescape" if self.name == "utf-8" else "surrogatepass"

    def size(self, text: str) -> int:
        """The number of bytes that `text` has in the file."""
        return len(text) if self.name == "utf-8" and text.isascii() else len(text.encode(self.name, self.errors))

    def fault(self, text: str) -> int | None:
        """The place in bytes of the first character that is not text, or None."""
        found = _NO_TEXT.search(text)
        return None if found is None else self.size(text[: found.start()])


def encoding_of(start: bytes) -> Encoding:
    """The encoding that the first bytes of a file say; UTF-8 when they say none."""
    return next((Encoding(name, len(mark)) for mark, name in _MARKS if start.startswith(mark)), Encoding())


def encoding_of_file(path: Path) -> Encoding:
    """The encoding that the mark of a file says."""
    with path.open("rb") as file:
        return encoding_of(file.read(4))


def decode_text(content: bytes, name: str | Path) -> str:
    """Return the text of a whole file without its mark, line breaks as they are; NotText with its place."""
    encoding = encoding_of(content)
    try:
        text = content[encoding.mark :].decode(encoding.name)
    except UnicodeDecodeError as error:
        raise NotText(name, encoding.mark + error.start) from None
    if "\0" in text:
        raise NotText(name, encoding.mark + encoding.fault(text))
    return text


def read_text(path: str | Path, *, what: str = "file") -> str:
    """Return the text of a file, its lines ended by "\\n"; ValueError with one sentence when it cannot be read."""
    try:
        content = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ValueError(f"{what} {path} cannot be read ({error.strerror}); check the path.") from None
    return decode_text(content, path).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path) -> Iterator[tuple[int, int, str, int | None]]:
    """Yield (start, size, line, fault) of every line, which keeps its line break ("\\n", "\\r\\n" or a lone "\\r").

    `start` and `size` are bytes, `fault` is the byte in the file of the first character that is not text, or None.
    NotText for a UTF-16 or UTF-32 file that ends within a character.
    """
    encoding = encoding_of_file(path)
    with path.open("rb") as file:
        start = file.seek(encoding.mark)
        lines = io.TextIOWrapper(file, encoding.name, encoding.errors, newline="")
        try:
            for line in lines:
                size, fault = encoding.size(line), encoding.fault(line)
                yield start, size, line, None if fault is None else start + fault
                start += size
        except UnicodeDecodeError:
            decode_text(path.read_bytes(), path)
            raise


def parse_json(text: str) -> Any:
    """Return what the JSON in `text` says; ValueError also where it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def mend_text(text: str) -> str:
    """Return `text` with a question mark for each lone surrogate, half of a character that no tokenizer reads.

    >>> mend_text("a \\ud83d star")
    'a ? star'
    """
    return text if text.isascii() else _SURROGATE.sub("?", text)


def count_of(number: int, noun: str) -> str:
    """Return `number` with `noun`, in the plural unless it is one; for nouns whose plural ends in "s".

    >>> count_of(1, "prompt"), count_of(0, "prompt"), count_of(3000, "late detail")
    ('1 prompt', '0 prompts', '3,000 late details')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
