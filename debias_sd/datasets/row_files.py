"""Files of rows: JSON lines, tables with a heading (CSV, TSV), one JSON file. Rows of one picture are one record.

* JSON lines: `{"file_name": "images/1.jpg", "text": "..."}` as Hugging Face's `datasets` writes them; the caption may
  be a list, and `caption_short` beside it is kept as the record's short caption.
* Tables, quotes and line breaks inside them included. open_clip's form is `filepath<TAB>title`; DeBias-CLIP's has
  filepath, title, summary and description. The separator is the one that the heading uses most.
* A JSON file of any size: `[{"image": ..., "caption": ...}, ...]`, `{"1.jpg": [...]}`, told apart by its keys.

The columns may have other names (`columns.py`), of which `**columns` may choose: see `choose_columns`.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import IMAGE_NAMES, SAMPLE, choose_columns, list_names
from debias_sd.datasets.large_files import parse_element, scan_json
from debias_sd.datasets.listing import BROKEN, NOT_UTF8, Row, RowRecords, check_file, list_rows
from debias_sd.datasets.pictures import SUFFIXES
from debias_sd.text import NotText, count_of, encoding_of_file, parse_json, read_lines


def read_jsonl(
    path: str | Path,
    *,
    image_root: str | Path | None = None,
    skip_missing: bool = True,
    name: str = "jsonl",
    **columns: Any,
) -> RowRecords:
    """Read a JSON lines file; pictures lie relative to `image_root`, by default the file's folder.

    ValueError names the first line that is not a JSON object with a picture and a caption.
    """
    path = Path(path)
    check_file(path, what="JSON lines file")
    first = [row.values for row in islice((row for row in _lines(path) if row.fault is None), SAMPLE)]
    chosen = choose_columns(first, subject=f"line 1 of {path}", **columns)
    root = Path(image_root) if image_root is not None else path.parent
    rows = _checked(path, chosen.image, chosen.caption) if chosen else _lines(path)
    parse = partial(_parse_line, encoding=encoding_of_file(path).name)
    return list_rows(name, path, rows, parse=parse, columns=chosen, root=root, skip_missing=skip_missing)


def _lines(path: Path) -> Iterator[Row]:
    """Yield every line that is not blank."""
    for number, (start, size, line, fault) in enumerate(read_lines(path), start=1):
        if fault is not None:
            yield Row(start, size, {}, NOT_UTF8, f"byte {fault:,} of {path.name}")
        elif line.strip():
            yield Row(start, size, parse_object(line, number=number, path=path))


def parse_object(line: str, *, number: int, path: Path) -> dict[str, Any]:
    """Return the JSON object that line `number` of `path` is; ValueError with one sentence for anything else."""
    try:
        row = parse_json(line)
    except ValueError:
        raise ValueError(f"line {number} of {path} is not JSON; write one object per line.") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} of {path} is not a JSON object; write one object per line.")
    return row


def _checked(path: Path, image: str | None, caption: str) -> Iterator[Row]:
    for place, row in enumerate(_lines(path), start=1):
        if row.fault is None and (image not in row.values or caption not in row.values):
            raise ValueError(f"object {place} of {path} lacks {image} or {caption}; write both on each line.")
        yield row


def _parse_line(content: bytes, *, encoding: str) -> dict[str, Any]:
    return parse_json(content.decode(encoding))


SEPARATORS = ("\t", ",", ";", "|")
_LONGEST_FIELD = 1 << 24  # csv's own limit of 128 KiB is below what some lists of captions need


def read_table(
    path: str | Path,
    *,
    image_root: str | Path | None = None,
    skip_missing: bool = True,
    name: str = "csv",
    **columns: Any,
) -> RowRecords:
    """Read a table; pictures lie relative to `image_root`, by default the file's folder.

    ValueError names the first row with another number of fields than the heading.
    """
    path = Path(path)
    check_file(path, what="table")
    separator, heading = read_heading(path)
    encoding = encoding_of_file(path).name
    first = [row.values for row in islice(_rows(path, separator, heading), SAMPLE)]
    # A table without rows still has a heading to name the columns by.
    chosen = choose_columns([dict.fromkeys(heading), *first], subject=f"table {path}", **columns)
    root = Path(image_root) if image_root is not None else path.parent
    parse = partial(_parse_row, heading=heading, separator=separator, encoding=encoding)
    rows = _rows(path, separator, heading)
    return list_rows(name, path, rows, parse=parse, columns=chosen, root=root, skip_missing=skip_missing)


def read_heading(path: Path) -> tuple[str, list[str]]:
    """The separator, which is the one that the heading uses most, a tab before a comma, and the columns' names.

    ValueError when a file has no heading, or names two columns alike.
    """
    line, fault = next(((line, fault) for _, _, line, fault in read_lines(path)), ("", None))
    if fault is not None:
        raise NotText(path, fault)
    separator = max(SEPARATORS, key=line.count)
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator), [])]
    except csv.Error as error:
        raise ValueError(f"the heading of table {path} cannot be read ({error}); mend it.") from None
    if not any(names):
        raise ValueError(f"table {path} has no heading; write the names of the columns on its first line.")
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise ValueError(
            f"table {path} has {count_of(names.count(twice[0]), 'column')} named {twice[0]!r}; rename one."
        )
    return separator, names


def _rows(path: Path, separator: str, heading: list[str]) -> Iterator[Row]:
    """Yield every row that is not blank. A row with line breaks in quotes spans several lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    position, fault = encoding_of_file(path).mark, None

    def lines() -> Iterator[str]:
        nonlocal position, fault
        for start, size, line, bad in read_lines(path):
            position, fault = start + size, bad if fault is None else fault
            yield line

    reader = csv.reader(lines(), delimiter=separator)
    try:
        next(reader, None)
        start, fault = position, None
        for fields in reader:
            if any(fields):
                _check_width(fields, heading, path, reader.line_num)
                place = None if fault is None else f"byte {fault:,} of {path.name}"
                values = dict(zip(heading, fields, strict=True))
                yield Row(start, position - start, values, None if place is None else NOT_UTF8, place)
            start, fault = position, None
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of {path} is not a row of a table ({error}); mend it.") from None


def _check_width(fields: list[str], heading: list[str], path: Path, line: int) -> None:
    if len(fields) != len(heading):
        raise ValueError(
            f"the row that ends in line {line} of {path} has {count_of(len(fields), 'field')} but the heading has "
            f"{len(heading)}; put texts that contain the separator or a quote into quotes."
        )


def _parse_row(content: bytes, *, heading: list[str], separator: str, encoding: str) -> Mapping[str, Any]:
    """The row in `content`, as `_rows` gave it."""
    csv.field_size_limit(_LONGEST_FIELD)
    fields = next(csv.reader([content.decode(encoding)], delimiter=separator))
    return dict(zip(heading, fields, strict=True))


FORMS = (
    'a list of {"image": ..., "caption": ...}, an object {"1.jpg": "caption" or a list of them}, LLaVA\'s list of '
    '{"image": ..., "conversations": ...}, one object per line'
)
TURNS = "conversations"  # LLaVA's key of what was said of a picture
_IMAGE, _CAPTION = "image", "caption"


def find_form(path: Path) -> str:
    """The kind of a JSON file by its keys: "llava", "jsonl" for an object per line, else "json"."""
    try:
        first = [element.value for element in islice(scan_json(path), SAMPLE)]
    except ValueError:  # no JSON, or not to its end: its reader says so
        first = []
    if any(isinstance(value, dict) and TURNS in value for value in first):
        return "llava"
    if any(isinstance(value, dict) for value in first) or _is_by_file(first):
        return "json"
    line = next((line for _, _, line, _ in read_lines(path) if line.strip()), "{}")
    try:
        return "jsonl" if isinstance(parse_json(line), dict) else "json"
    except ValueError:
        return "json"


def read_json(
    path: str | Path, *, image_root: str | Path | None = None, skip_missing: bool = True, **columns: Any
) -> RowRecords:
    """Read a list of objects, or an object of captions; pictures lie relative to `image_root`, else beside the file.

    ValueError names the keys found and the forms that are known where the file has none of them.
    """
    path = Path(path)
    check_file(path, what="JSON file")
    first = [element.value for element in islice(scan_json(path), SAMPLE)]
    sample = [_values_of(value) for value in first if isinstance(value, dict)]
    if _is_by_file(first):
        sample = [_values_of(value) for value in first]
    elif columns.get("image_column") is None:
        check_form(path, first, IMAGE_NAMES)
    chosen = choose_columns(sample, subject=f"file {path}", **columns)
    root = Path(image_root) if image_root is not None else path.parent
    rows = _entries(path) if chosen else ()  # without a row there are no columns
    parse = partial(_parse_entry, encoding=encoding_of_file(path).name)
    return list_rows("json", path, rows, parse=parse, columns=chosen, root=root, skip_missing=skip_missing)


def check_form(path: Path, first: list[Any], wanted: tuple[str, ...]) -> None:
    """ValueError unless some of a file's first elements is an object with one of the keys `wanted`."""
    keys = dict.fromkeys(name for value in first for name in (value if isinstance(value, dict) else ()))
    if first and not any(name.lower() in wanted for name in keys):
        names = [value[0] for value in first if isinstance(value, tuple)] or list(keys)
        kinds = "objects without keys" if isinstance(first[0], dict) else f"{type(first[0]).__name__}, no objects"
        found = f"its keys are {list_names(names)}" if names else f"it holds {kinds}"
        raise ValueError(f"{path} has none of the known forms, {found}; the known forms are {FORMS}.")


def _is_by_file(first: list[Any]) -> bool:
    """Whether a file is an object whose names are pictures."""
    return any(isinstance(value, tuple) and value[0].lower().endswith(SUFFIXES) for value in first)


def _entries(path: Path) -> Iterator[Row]:
    for element in scan_json(path):
        fault, place = None, None
        if element.fault is not None:
            fault, place = NOT_UTF8, f"byte {element.fault:,} of {path.name}"
        elif not isinstance(element.value, dict | tuple):
            fault = BROKEN
        yield Row(element.start, element.size, {} if fault else _values_of(element.value), fault, place)


def _values_of(value: Any) -> Mapping[str, Any]:
    return {_IMAGE: value[0], _CAPTION: value[1]} if isinstance(value, tuple) else value


def _parse_entry(content: bytes, *, encoding: str) -> Mapping[str, Any]:
    return _values_of(parse_element(content.decode(encoding)))
