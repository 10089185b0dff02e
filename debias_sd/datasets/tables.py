"""Tables with a heading: CSV and TSV, quotes and line breaks inside them included.

open_clip's form is `filepath<TAB>title`; DeBias-CLIP's has filepath, title, summary and description. The separator is
the one that the heading uses most, whatever the file's name says.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from debias_sd.counts import count_of
from debias_sd.datasets.columns import SAMPLE, choose_columns
from debias_sd.datasets.listing import RowRecords, check_file, list_rows

SEPARATORS = ("\t", ",", ";", "|")
_LONGEST_FIELD = 1 << 24  # csv's own limit of 128 KiB is below what some lists of captions need


def read_table(
    path: str | Path,
    *,
    image_root: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
    skip_missing: bool = True,
    name: str = "csv",
) -> RowRecords:
    """Read a table; pictures lie relative to `image_root`, by default the file's folder.

    ValueError names the first row with another number of fields than the heading.
    """
    path = Path(path)
    check_file(path, what="table")
    separator = sniff_separator(path)
    heading, first = read_heading(path, separator), [row for _, _, row in islice(_rows(path, separator), SAMPLE)]
    # A table without rows still has a heading to name the columns by.
    columns = choose_columns(
        first or [dict.fromkeys(heading)],
        subject=f"table {path}",
        image=image_column,
        caption=caption_column,
        short=short_caption_column,
    )
    root = Path(image_root) if image_root is not None else path.parent
    parse = partial(_parse, heading=heading, separator=separator)
    rows = _rows(path, separator)
    return list_rows(name, path, rows, parse=parse, columns=columns, root=root, skip_missing=skip_missing)


def sniff_separator(path: Path) -> str:
    """The separator that occurs most in the heading; a tab before a comma where they are equal."""
    with path.open("rb") as file:
        heading = file.readline().decode("utf-8-sig", "replace")
    return max(SEPARATORS, key=heading.count)


def read_heading(path: Path, separator: str) -> list[str]:
    """The names of the columns; ValueError when a file has no heading."""
    with path.open("rb") as file:
        names = next(csv.reader([file.readline().decode("utf-8-sig", "replace")], delimiter=separator), [])
    names = [name.strip() for name in names]
    if not any(names):
        raise ValueError(f"table {path} has no heading; write the names of the columns on its first line.")
    return names


def _rows(path: Path, separator: str) -> Iterator[tuple[int, int, Mapping[str, str]]]:
    """Yield (start, size, row) of every row that is not blank. A row with line breaks in quotes spans several lines."""
    csv.field_size_limit(_LONGEST_FIELD)
    heading, position = read_heading(path, separator), 0

    def lines() -> Iterator[str]:
        nonlocal position
        with path.open("rb") as file:
            for line in file:
                position += len(line)
                yield _decode(line, path)

    reader = csv.reader(lines(), delimiter=separator)
    try:
        next(reader, None)
        start = position
        for fields in reader:
            if any(fields):
                _check_width(fields, heading, path, reader.line_num)
                yield start, position - start, dict(zip(heading, fields, strict=True))
            start = position
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num} of {path} is no row of a table ({error}); correct it.") from None


def _check_width(fields: list[str], heading: list[str], path: Path, line: int) -> None:
    if len(fields) != len(heading):
        raise ValueError(
            f"the row that ends in line {line} of {path} has {count_of(len(fields), 'field')}, the heading has "
            f"{len(heading)}; put texts that contain the separator or a quote into quotes."
        )


def _decode(line: bytes, path: Path) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"table {path} is not UTF-8 text; save it as UTF-8.") from None


def _parse(content: bytes, *, heading: list[str], separator: str) -> Mapping[str, Any]:
    """The row in `content`, as `_rows` gave it."""
    csv.field_size_limit(_LONGEST_FIELD)
    fields = next(csv.reader([content.decode("utf-8")], delimiter=separator))
    return dict(zip(heading, fields, strict=True))
