"""One JSON list of records, or one JSON object, too large to be read whole: where each element starts and ends.

In constant memory: a file in UTF-8 goes through as Latin-1, in which every byte is one character. Python's own C
scanner then does the parsing (strings, escapes, nesting), and a place in the text is a place in the file.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from debias_sd.counts import count_of
from debias_sd.text_files import decode_text, encoding_of_file, parse_json

CHUNK = 1 << 22
LARGEST_ELEMENT = 1 << 26
_START = re.compile(r"[ \t\r\n]*([\[{])[ \t\r\n]*([\]}])?")
_BLANK = re.compile(r"[ \t\r\n]*")
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*(?:(,)[ \t\r\n]*|([\]}]))")


class Element(NamedTuple):
    """Where an element lies, what it is and the byte in the file of the first character that is not text, or None.

    Of a list: its value. Of an object: a pair (name, value), which lies at `"name": value`.
    """

    start: int
    size: int
    value: Any
    fault: int | None


def scan_json(path: Path, *, chunk: int = CHUNK) -> Iterator[Element]:
    """Yield every element of the list or object in `path`.

    ValueError with the place of the first fault when the file is neither, or ends early.
    """
    with path.open("rb") as file:
        yield from _scan(_Source(path, file, chunk))


def _scan(source: _Source) -> Iterator[Element]:
    found = _START.match(source.text)
    if found is None:
        raise ValueError(
            f"{source.path} is not a JSON list or object (it starts with neither '[' nor '{{'); name the file with all "
            "records."
        )
    closing = "]" if found[1] == "[" else "}"
    decode = json.JSONDecoder().raw_decode
    decode = decode if closing == "]" else _pair_decoder(decode)
    position, count, more = found.end(), 0, found[2] is None
    if found[2] not in (None, closing):
        source.fail(found.end(), count)
    while more:
        between = None
        try:
            value, end = decode(source.text, position)
            between, fault = _BETWEEN.match(source.text, end), end
        except json.JSONDecodeError as error:
            fault = error.pos
        except (ValueError, RecursionError):  # a number of too many digits, or nested too deeply
            source.fail(position, count)
        if between is not None and between[2] not in (None, closing):
            source.fail(end, count)
        if between is not None and (between[2] or between.end() < len(source.text)):
            yield source.element(position, end, value)
            count += 1
            position, more = between.end(), between[2] is None
        elif source.read_on(position):
            # The element, or what stands after it, may only have been cut off by the end of `text`: look again.
            position = _BLANK.match(source.text).end()
        else:
            source.fail(fault, count)


def parse_element(text: str) -> Any:
    """An element by itself: the value, or the pair (name, value)."""
    try:
        return parse_json(text)
    except json.JSONDecodeError:  # more than one value
        return next(iter(parse_json(f"{{{text}}}").items()))


def _pair_decoder(decode: Callable[[str, int], tuple[Any, int]]) -> Callable[[str, int], tuple[Any, int]]:
    """Decodes `"name": value` as a pair."""

    def pair(text: str, position: int) -> tuple[Any, int]:
        name, end = decode(text, position)
        colon = _COLON.match(text, end)
        if colon is None or not isinstance(name, str):
            raise json.JSONDecodeError("no name with a value", text, end)
        value, end = decode(text, colon.end())
        return (name, value), end

    return pair


class _Source:
    """A file as text, a chunk at a time."""

    def __init__(self, path: Path, file: BinaryIO, chunk: int) -> None:
        self.path, self._file, self.chunk = path, file, chunk
        self.encoding, self._is_whole = encoding_of_file(path), False
        self.is_utf8 = self.encoding.name == "utf-8"
        self._last = 0, file.seek(self.encoding.mark)  # a place in the text, and its byte in the file
        self._decoder = codecs.getincrementaldecoder("latin-1" if self.is_utf8 else self.encoding.name)("surrogatepass")
        self.text = self._read(max(chunk, 64))

    def _read(self, chunk: int) -> str:
        content = self._file.read(chunk)
        try:
            text = self._decoder.decode(content, final=len(content) < chunk)
        except UnicodeDecodeError:
            decode_text(self.path.read_bytes(), self.path)
            raise
        self._is_whole = not content
        return text

    def byte(self, position: int) -> int:
        """The byte in the file of a place in the text, which is never before the last one asked for."""
        last, byte = self._last
        passed = position - last if self.is_utf8 else self.encoding.size(self.text[last:position])
        self._last = position, byte + passed
        return byte + passed

    def element(self, start: int, end: int, value: Any) -> Element:
        """The element between two places, its texts as they are meant."""
        first, text = self.byte(start), self.text[start:end]
        size, fault = self.byte(end) - first, None
        if not text.isascii():
            text = text.encode("latin-1").decode("utf-8", "surrogateescape") if self.is_utf8 else text
            fault = self.encoding.fault(text)
            value = parse_element(text) if self.is_utf8 else value
        return Element(first, size, value, None if fault is None else first + fault)

    def read_on(self, position: int) -> bool:
        """Let the text begin at `position` and read a chunk more; False where there is none, or the element is huge."""
        if len(self.text) - position > LARGEST_ELEMENT:
            return False
        added = ""
        while not added and not self._is_whole:  # a chunk may hold less than one character
            added = self._read(self.chunk)
        if added:
            self._last = 0, self.byte(position)
            self.text = self.text[position:] + added
        return bool(added)

    def fail(self, position: int, count: int) -> NoReturn:
        """ValueError: the place where the file is not JSON, or that it ends early."""
        text = self.text.rstrip()
        if self._is_whole and not text.endswith(("]", "}")):
            raise ValueError(f"{self.path} ends within its list, after {count_of(count, 'record')}; copy it again.")
        raise ValueError(
            f"{self.path} is not JSON near byte {self.byte(position):,}, after {count_of(count, 'record')}; copy it "
            "again."
        )
