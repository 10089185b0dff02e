"""JSON lines: one object a line with the picture's file and its caption, as Hugging Face's `datasets` writes them.

`{"file_name": "images/1.jpg", "text": "..."}`; the columns may have other names (`columns.py`), the caption may be a
list, and `caption_short` beside it is kept as the record's short caption. Lines of one picture are one record.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import SAMPLE, choose_columns
from debias_sd.datasets.listing import NOT_UTF8, Row, RowRecords, check_file, list_rows
from debias_sd.text_files import encoding_of_file, parse_json, read_lines


def read_jsonl(
    path: str | Path,
    *,
    image_root: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
    skip_missing: bool = True,
    name: str = "jsonl",
) -> RowRecords:
    """Read a JSON lines file; pictures lie relative to `image_root`, by default the file's folder.

    ValueError names the first line that is no JSON object with a picture and a caption.
    """
    path = Path(path)
    check_file(path, what="JSON lines file")
    first = [row.values for row in islice((row for row in _rows(path) if row.fault is None), SAMPLE)]
    subject = f"line 1 of {path}"
    columns = choose_columns(
        first, subject=subject, image=image_column, caption=caption_column, short=short_caption_column
    )
    root = Path(image_root) if image_root is not None else path.parent
    rows = _checked(path, columns.image, columns.caption) if columns else _rows(path)
    parse = partial(_parse, encoding=encoding_of_file(path).name)
    return list_rows(name, path, rows, parse=parse, columns=columns, root=root, skip_missing=skip_missing)


def _rows(path: Path) -> Iterator[Row]:
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


def _checked(path: Path, image: str, caption: str) -> Iterator[Row]:
    for place, row in enumerate(_rows(path), start=1):
        if row.fault is None and (image not in row.values or caption not in row.values):
            raise ValueError(f"object {place} of {path} lacks {image} or {caption}; write both on each line.")
        yield row


def _parse(content: bytes, *, encoding: str) -> dict[str, Any]:
    return parse_json(content.decode(encoding))
