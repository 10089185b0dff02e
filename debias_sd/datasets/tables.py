"""Tables with a heading: CSV and TSV, quotes and line breaks inside them included.

open_clip's form is `filepath<TAB>title`; DeBias-CLIP's has filepath, title, summary and description. The separator is
the one that the heading uses most, whatever the file's name says. Rows of one picture are one record.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from debias_sd.counts import count_of
from debias_sd.datasets.columns import SAMPLE, choose_columns
from debias_sd.datasets.listing import NOT_UTF8, Row, RowRecords, check_file, list_rows
from debias_sd.text_files import NotText, encoding_of_file, read_lines

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
    separator, heading = read_heading(path)
    encoding = encoding_of_file(path).name
    first = [row.values for row in islice(_rows(path, separator, heading), SAMPLE)]
    # A table without rows still has a heading to name the columns by.
    columns = choose_columns(
        [dict.fromkeys(heading), *first],
        subject=f"table {path}",
        image=image_column,
        caption=caption_column,
        short=short_caption_column,
    )
    root = Path(image_root) if image_root is not None else path.parent
    parse = partial(_parse, heading=heading, separator=separator, encoding=encoding)
    rows = _rows(path, separator, heading)
    return list_rows(name, path, rows, parse=parse, columns=columns, root=root, skip_missing=skip_missing)


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
            f"the row that ends in line {line} of {path} has {count_of(len(fields), 'field')}, the heading has "
            f"{len(heading)}; put texts that contain the separator or a quote into quotes."
        )


def _parse(content: bytes, *, heading: list[str], separator: str, encoding: str) -> Mapping[str, Any]:
    """The row in `content`, as `_rows` gave it."""
    csv.field_size_limit(_LONGEST_FIELD)
    fields = next(csv.reader([content.decode(encoding)], delimiter=separator))
    return dict(zip(heading, fields, strict=True))
