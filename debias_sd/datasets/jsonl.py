"""JSON lines: one object a line with the picture's file and its caption, as Hugging Face's `datasets` writes them.

`{"file_name": "images/1.jpg", "text": "..."}`; the columns may have other names (`columns.py`), the caption may be a
list, and `caption_short` beside it is kept as the record's short caption.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import SAMPLE, choose_columns
from debias_sd.datasets.listing import RowRecords, check_file, list_rows


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
    first = [row for _, _, row in islice(_lines(path), SAMPLE)]
    subject = f"line 1 of {path}"
    columns = choose_columns(
        first, subject=subject, image=image_column, caption=caption_column, short=short_caption_column
    )
    root = Path(image_root) if image_root is not None else path.parent
    rows = _checked(path, columns.image, columns.caption) if columns else ()
    return list_rows(name, path, rows, parse=json.loads, columns=columns, root=root, skip_missing=skip_missing)


def _lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Yield (start, size, object) of every line that is not blank."""
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if number == 1 and line.startswith(b"\xef\xbb\xbf"):
                start, line = 3, line[3:]
            if line.strip():
                yield start, len(line), parse_object(line, number=number, path=path)
            start += len(line)


def parse_object(line: bytes, *, number: int, path: Path) -> dict[str, Any]:
    """Return the JSON object that line `number` of `path` is; ValueError with one sentence for anything else."""
    try:
        row = json.loads(line)
    except ValueError:  # UnicodeDecodeError too
        raise ValueError(f"line {number} of {path} is not JSON; write one object per line.") from None
    if not isinstance(row, dict):
        raise ValueError(f"line {number} of {path} is no JSON object; write one object per line.")
    return row


def _checked(path: Path, image: str, caption: str) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    for place, (start, size, row) in enumerate(_lines(path), start=1):
        if image not in row or caption not in row:
            raise ValueError(f"object {place} of {path} lacks {image} or {caption}; write both on each line.")
        yield start, size, row
