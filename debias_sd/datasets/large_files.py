"""Files too large to be read whole: parts by offset, the elements of a JSON list or object, an index kept on disk.

Of a JSON file every element is found in constant memory: a file in UTF-8 goes through as Latin-1, in which every byte
is one character. Python's own C scanner then does the parsing (strings, escapes, nesting), and a place in the text is
a place in the file.

An index, what was found out about a file so that the next start need not look again, lies beside the file, in
`FILE.index/`, so that the nodes of a cluster share it; where that cannot be written, in the cache folder of the user;
where neither can, in memory. Named after the size and time of the file and the version of the reader: a changed file is
looked at anew. Written whole or not at all, so that processes may write it at once.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from debias_sd.text import count_of, decode_text, encoding_of_file, parse_json


class FileSlices:
    """`slices[i]`: the bytes of part i, read when asked for.

    `starts` int64 [n] and `sizes` int32 [n] may be memory maps. Reads are by position, so forked workers may share the
    open file; pickling leaves it out.
    """

    def __init__(self, path: Path, starts: np.ndarray, sizes: np.ndarray) -> None:
        self.path, self.starts, self.sizes = path, starts, sizes
        self._descriptor: int | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        size = int(self.sizes[index])
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        content = os.pread(self._descriptor, size, int(self.starts[index]))
        if len(content) < size:
            raise ValueError(f"{self.path} became shorter while it was read; leave data files alone during a run.")
        return content

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)


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


def keep_index(
    source: Path, name: str, *, key: tuple[object, ...], build: Callable[[], tuple[np.ndarray, dict[str, Any]]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return (array as a read-only memory map, notes) that `build` makes of `source`, from disk where they are there.

    `key` says what they depend on beside the size and time of the file: the version of the reader, a folder.
    """
    status = source.stat()
    digest = hashlib.sha256(json.dumps([status.st_size, status.st_mtime_ns, *map(str, key)]).encode()).hexdigest()[:16]
    for folder in _places(source):
        found = _load(folder, f"{name}-{digest}")
        if found is not None:
            return found
    array, notes = build()
    for folder in _places(source):
        if _save(folder, f"{name}-{digest}", array, notes):
            _drop_others(folder, name, digest)
            return _load(folder, f"{name}-{digest}") or (array, notes)
    return array, notes


def _places(source: Path) -> Iterator[Path]:
    yield source.with_name(source.name + ".index")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    yield Path(home) / "debias_sd" / f"{source.name}-{place}.index"


def _load(folder: Path, stem: str) -> tuple[np.ndarray, dict[str, Any]] | None:
    """The index on disk, or None where it is not there or not whole."""
    try:
        array = np.load(folder / f"{stem}.npy", mmap_mode="r", allow_pickle=False)
        return array, json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: a damaged file is made again
        return None


def _save(folder: Path, stem: str, array: np.ndarray, notes: dict[str, Any]) -> bool:
    """Write notes and array, the array last; say whether that was possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"{stem}.json", json.dumps(notes).encode())
        _write(folder / f"{stem}.npy", array)
    except OSError:  # read-only or full
        return False
    return True


def _write(path: Path, content: bytes | np.ndarray) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                np.save(file, content, allow_pickle=False)
        os.chmod(scratch, 0o644)  # mkstemp's 0o600 would shut the other users of a shared folder out
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _drop_others(folder: Path, name: str, digest: str) -> None:
    """Remove what an earlier state of the file left."""
    for old in folder.glob(f"{name}-*"):
        if not old.stem.endswith(digest):
            old.unlink(missing_ok=True)


def pack_array(array: np.ndarray) -> Path | np.ndarray:
    """What to pickle for `array`: the name of its file where it is memory-mapped, so that a worker maps it itself."""
    return Path(array.filename) if isinstance(array, np.memmap) else array


def unpack_array(packed: Path | np.ndarray) -> np.ndarray:
    """The array that was packed."""
    return np.load(packed, mmap_mode="r", allow_pickle=False) if isinstance(packed, Path) else packed
