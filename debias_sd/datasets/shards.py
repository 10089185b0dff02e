"""WebDataset shards: tar archives in which `000123.jpg` and `000123.txt` (or `.json`) follow each other.

Samples are addressed by number, through an index of the archives that is made once, with every text looked at (84 bytes
a sample, memory-mapped). A sequential reader would need less disk seeking, but which sample a process sees would then
depend on the number of processes and workers, and a resumed run would have to read again up to its place. Here every
process reads its own rows of one global batch, from any shard; `blocks` lets the order of an epoch stay within a few
shards at a time, so that the nodes of a cluster read the same archives at the same time. Archives must lie on a disk (a
shared one too).
"""

from __future__ import annotations

import contextlib
import glob
import re
import tarfile
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from debias_sd.datasets.columns import SAMPLE, Columns, NoText, choose_columns, fold, list_names
from debias_sd.datasets.large_files import FileSlices, keep_index, pack_array, unpack_array
from debias_sd.datasets.listing import BROKEN, NO_CAPTION, NO_PICTURE, NOT_UTF8, LeftOut, places_of
from debias_sd.datasets.pictures import LARGEST_BYTES, SUFFIXES
from debias_sd.datasets.records import Piece, Pool, Record
from debias_sd.text import NotText, decode_text, parse_json

_VERSION = 2
_OPEN = 64  # archives that are kept open
NAME = 40  # bytes of a sample's name that the index keeps, the last ones
INDEX = np.dtype(
    [("shard", "<i4"), ("image", "<i8"), ("image_size", "<i8"), ("text", "<i8"), ("text_size", "<i4")]
    + [("json", "<i8"), ("json_size", "<i4"), ("name", f"S{NAME}")]
)
_LONGEST_TEXT = 1 << 26  # bytes
_NOTHING = (0, 0)
Member = tuple[int, int]  # start and size in its archive
Members = dict[str, Member]  # by suffix: ".jpg", ".txt", ".json"


class Shards:
    """The samples that have a picture and a text, shard by shard; `blocks` is the number of samples of each shard.

    A row of the index is a text with its picture; `text_size` is 0 where the captions are those of the JSON. Rows of
    one picture stand together and are one record.
    """

    name = "shards"
    expected: Pool | None = None

    def __init__(
        self,
        paths: list[Path],
        index: np.ndarray,
        *,
        columns: Columns | None,
        left_out: dict[str, int],
        keys: list[str],
    ) -> None:
        self.paths, self.left_out, self.keys, self._index, self._columns = paths, left_out, keys, index, columns
        first = np.ones(len(index), bool)
        first[1:] = (index["shard"][1:] != index["shard"][:-1]) | (index["image"][1:] != index["image"][:-1])
        starts = np.flatnonzero(first)
        self._bounds = None if len(starts) == len(index) else np.append(starts, len(index)).astype(np.int32)
        self.blocks = np.bincount(index["shard"][starts], minlength=len(paths))
        self._files: dict[tuple[int, str], FileSlices] = {}

    def __len__(self) -> int:
        return len(self._index) if self._bounds is None else len(self._bounds) - 1

    def __getitem__(self, index: int) -> Record:
        captions: dict[str, None] = {}
        short = None
        for place in places_of(self._bounds, index, len(self)):
            row = self._index[place]
            values = parse_json(self._text(place, "json")) if row["json_size"] else {}
            texts = (fold(self._text(place, "text")),) if row["text_size"] else self._columns.text_of(values)
            captions |= dict.fromkeys(texts)
            short = short or (self._columns.short_of(values) if self._columns else None)
        row = self._index[places_of(self._bounds, index, len(self))[0]]
        path, name = self.paths[int(row["shard"])], row["name"].decode("utf-8", "replace")
        image = Piece(path, int(row["image"]), int(row["image_size"]), name)
        return Record(f"{path.name}:{name}", image, tuple(captions), short)

    def _text(self, place: int, member: str) -> str:
        """The text file or the JSON of a row of the index."""
        shard = int(self._index["shard"][place])
        if (shard, member) not in self._files:
            if len(self._files) >= _OPEN:
                self._files.clear()
            slices = FileSlices(self.paths[shard], self._index[member], self._index[f"{member}_size"])
            self._files[shard, member] = slices
        return decode_text(self._files[shard, member][place], self.paths[shard])

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": pack_array(self._index), "_files": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._index = unpack_array(state["_index"])


def read_shards(
    pattern: str | Path, *, caption_column: str | None = None, short_caption_column: str | None = None
) -> Shards:
    """Open the archives that `pattern` names: a file, a folder, a glob, or `name-{000..123}.tar`.

    The columns are names in a sample's JSON. A caption column that is named is read even where a `.txt` stands beside
    the JSON. ValueError when there are no archives, or one is compressed, damaged or not an archive, and when no JSON
    has a named column.
    """
    paths = find_shards(str(pattern))
    times = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    given = (caption_column, short_caption_column)
    index, notes = keep_index(
        paths[0], "samples", key=(_VERSION, *given, *times), build=lambda: build_index(str(pattern), paths, *given)
    )
    columns = None if notes["columns"] is None else Columns(None, *notes["columns"])
    return Shards(paths, index, columns=columns, left_out=notes["left_out"], keys=notes["keys"])


def find_shards(pattern: str) -> list[Path]:
    """The archives that `pattern` names, in the order of their names; ValueError when one is not there."""
    ranges = re.findall(r"\{(\d+)\.\.(\d+)\}", pattern)
    if ranges:
        numbers = [[f"{n:0{len(low)}}" for n in range(int(low), int(high) + 1)] for low, high in ranges]
        form = re.sub(r"\{\d+\.\.\d+\}", "{}", pattern)
        paths = [Path(form.format(*chosen)) for chosen in product(*numbers)]
    elif Path(pattern).is_dir():
        paths = sorted(Path(pattern).glob("*.tar"))
    else:
        paths = [Path(name) for name in sorted(glob.glob(pattern))]
    missing = [path for path in paths if not path.is_file()]
    if missing or not paths:
        raise ValueError(f"shard {missing[0] if missing else pattern} does not exist; correct the pattern or copy it.")
    return paths


def build_index(
    pattern: str, paths: list[Path], caption: str | None, short: str | None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return an `INDEX` row for each text with its picture, and the columns chosen, keys found and counts left out.

    ValueError when no JSON has a column that is named.
    """
    columns, keys = _choose(pattern, paths, caption, short)
    rows, left_out = [], LeftOut()
    for number, path in enumerate(paths):
        with path.open("rb") as file:
            samples: dict[str, list[Members]] = {}
            for name, members in _samples(path):
                samples.setdefault(name, []).append(members)
            reader = _Reader(path, file, columns, from_json=caption is not None)
            for name, parts in samples.items():
                for image, members in _pairs(file, parts):
                    fault, place, texts = reader.look(name, image, members)
                    if fault is not None:
                        left_out.add(fault, place)
                    else:
                        rows.append((number, *image, *texts, name.encode("utf-8", "surrogateescape")[-NAME:]))
    chosen = None if columns is None else (columns.caption, columns.short)
    return np.array(rows, INDEX), {"columns": chosen, "keys": keys, "left_out": left_out.as_dict()}


def _choose(
    pattern: str, paths: list[Path], caption: str | None, short: str | None
) -> tuple[Columns | None, list[str]]:
    """The columns of the samples' JSON, None where captions are in text files alone; and all that samples have."""
    rows, suffixes = [], {}
    for path, (_, members) in islice(((at, one) for at in paths for one in _samples(at)), SAMPLE):
        suffixes |= dict.fromkeys(members)
        if ".json" in members:
            with path.open("rb") as file, contextlib.suppress(NotText):
                value = _parse(_read(file, members[".json"]), path)
                rows += [value] if isinstance(value, dict) else []
    keys = [*suffixes, *dict.fromkeys(name for row in rows for name in row)]
    subject = f"the JSON of shards {pattern}"
    columns = None
    if any(rows):
        try:
            columns = choose_columns(
                rows, subject=subject, caption_column=caption, short_caption_column=short, with_image=False
            )
        except ValueError:
            if caption is not None or short is not None or ".txt" not in suffixes:
                raise
    elif caption is not None or short is not None:
        named = "caption_column" if caption is not None else "short_caption_column"
        raise ValueError(
            f"{named} is {caption or short!r} but the samples of shards {pattern} have no JSON with names, only "
            f"{list_names(suffixes) or 'nothing'}; leave it out."
        )
    return columns, keys


def _pairs(file: BinaryIO, parts: list[Members]) -> Iterator[tuple[Member | None, Members]]:
    """Yield (picture, members) of the parts of an archive that have one name: of one picture, its texts belong to it.

    Parts whose pictures differ only share their name, and stay by themselves.
    """
    together: list[Members] = []
    for part in parts:
        if together and not together[-1].keys() & part.keys():  # all pictures first, then all texts
            together[-1] = together[-1] | part
        else:
            together.append(part)
    images = [next((part[suffix] for suffix in SUFFIXES if suffix in part), None) for part in together]
    there = [image for image in images if image is not None]
    if (
        len(together) > 1
        and len({size for _, size in there}) == 1
        and len({_read(file, image) for image in there}) == 1
    ):
        with_text = [part for part in together if ".txt" in part or ".json" in part]
        yield from ((there[0], part) for part in with_text or together[:1])
    else:
        yield from zip(images, together, strict=True)


class _Reader:
    """Looks at the texts of the samples of one archive."""

    def __init__(self, path: Path, file: BinaryIO, columns: Columns | None, *, from_json: bool) -> None:
        self.path, self.file, self.columns, self.from_json = path, file, columns, from_json

    def look(self, name: str, image: Member | None, members: Members) -> tuple[str | None, str | None, tuple[int, ...]]:
        """(kind of fault, its place, places of the text and of the JSON that are to be read)."""
        text = _NOTHING if self.from_json else members.get(".txt", _NOTHING)
        notes = members.get(".json", _NOTHING) if self.columns else _NOTHING
        if text[1] and self.columns and self.columns.short is None:
            notes = _NOTHING
        place, texts = f"{self.path.name}:{name}", (*text, *notes)
        if image is None:
            return NO_PICTURE, None, texts
        if max(text[1], notes[1]) > _LONGEST_TEXT:
            return BROKEN, place, texts
        try:
            values = _parse(_read(self.file, notes), f"{place}.json") if notes[1] else {}
            values = values if isinstance(values, dict) else None
            if text[1]:
                found = bool(fold(decode_text(_read(self.file, text), f"{place}.txt")))
                texts = texts if values is not None else (*text, *_NOTHING)
            elif values is None:
                return BROKEN, None, texts
            else:
                found = bool(self.columns) and bool(self.columns.text_of(values))
            if self.columns and values:
                self.columns.short_of(values)
        except NotText as fault:
            return NOT_UTF8, fault.place, texts
        except NoText as fault:
            return str(fault), None, texts
        return (None if found else NO_CAPTION), None, texts


def _parse(content: bytes, name: str | Path) -> Any:
    """What a sample's JSON says, None where it is not JSON; NotText."""
    text = decode_text(content, name)
    try:
        return parse_json(text)
    except ValueError:
        return None


def _read(file: BinaryIO, member: Member) -> bytes:
    file.seek(member[0])
    return file.read(min(member[1], LARGEST_BYTES))


def _samples(path: Path) -> Iterator[tuple[str, Members]]:
    """Yield (name, members) of the files that stand together and have one name up to its first dot."""
    name, members = "", {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                folder, slash, file = member.name.rpartition("/")
                stem, dot, suffix = file.partition(".")
                if not member.isfile() or not dot:
                    continue
                suffix = f".{suffix.lower()}"
                if members and (folder + slash + stem != name or suffix in members):
                    yield name, members
                    members = {}
                name = folder + slash + stem
                members[suffix] = (member.offset_data, member.size)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(
            f"shard {path} is not a complete, uncompressed tar archive ({error}); unpack it if it is "
            "compressed, else copy it again."
        ) from None
    if members:
        yield name, members
