"""One JSON list of objects, too large to be read whole: where each object starts and ends, in constant memory.

The file goes through as Latin-1, in which every byte is one character: Python's own C scanner then does the parsing
(strings, escapes, nesting), and a place in the text is a place in the file. Texts come out as bytes in disguise; who
wants one right reads its object again as UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from debias_sd.counts import count_of

CHUNK = 1 << 22
LARGEST_ELEMENT = 1 << 26
_START = re.compile(r"(?:\xef\xbb\xbf)?[ \t\r\n]*\[[ \t\r\n]*(\])?")  # Latin-1's view of a byte order mark
_BLANK = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*(?:(,)[ \t\r\n]*|\])")


def scan_json_list(path: Path, *, chunk: int = CHUNK) -> Iterator[tuple[int, int, Any]]:
    """Yield (start, size in bytes, element parsed as Latin-1) of every element of the list in `path`.

    ValueError with the place of the first fault when the file is no JSON list or ends early.
    """
    decode = json.JSONDecoder().raw_decode
    with path.open("rb") as file:
        text, offset = _read(file, max(chunk, 64)), 0  # `text` starts at byte `offset` of the file
        found = _START.match(text)
        if found is None:
            raise ValueError(f"{path} is no JSON list (it does not start with '['); name the file with all records.")
        position, count, more = found.end(), 0, found[1] is None
        while more:
            try:
                element, end = decode(text, position)
                between = _BETWEEN.match(text, end)
                whole = between is not None and (between[1] is None or between.end() < len(text))
                fault = end
            except json.JSONDecodeError as error:
                whole, fault = False, error.pos
            if whole:
                yield offset + position, end - position, element
                count += 1
                position, more = between.end(), between[1] is not None
                continue
            # The element, or what stands behind it, may only be cut off by the end of `text`: read on and look again.
            added = _read(file, chunk) if len(text) - position <= LARGEST_ELEMENT else ""
            if not added:
                _fail(path, offset + fault, count)
            text, offset = text[position:] + added, offset + position
            position = _BLANK.match(text).end()


def _read(file: BinaryIO, chunk: int) -> str:
    return file.read(chunk).decode("latin-1")


def _fail(path: Path, place: int, count: int) -> None:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64))
        is_whole = file.read().rstrip().endswith(b"]")
    if not is_whole:
        raise ValueError(f"{path} ends within its list, after {count_of(count, 'record')}; copy it again.")
    raise ValueError(f"{path} is not JSON near byte {place:,}, after {count_of(count, 'record')}; copy it again.")
