"""One JSON file of pictures with captions, of any size: `[{"image": ..., "caption": ...}, ...]`, `{"1.jpg": [...]}`.

Which form a file has is told by its keys. A list's columns may have other names (`columns.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from debias_sd.datasets.columns import IMAGE_NAMES, SAMPLE, choose_columns, list_names
from debias_sd.datasets.folder import SUFFIXES
from debias_sd.datasets.json_list import parse_element, scan_json
from debias_sd.datasets.listing import BROKEN, NOT_UTF8, Row, RowRecords, check_file, list_rows
from debias_sd.text_files import encoding_of_file, parse_json, read_lines

FORMS = (
    'a list of {"image": ..., "caption": ...}, an object {"1.jpg": "caption" or a list of them}, LLaVA\'s list of '
    '{"image": ..., "conversations": ...}, one object a line'
)
TURNS = "conversations"  # LLaVA's key of what was said of a picture
_IMAGE, _CAPTION = "image", "caption"


def find_form(path: Path) -> str:
    """The kind of a JSON file by its keys: "llava", "jsonl" for an object a line, else "json"."""
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
    path: str | Path,
    *,
    image_root: str | Path | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
    skip_missing: bool = True,
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
    elif image_column is None:
        check_form(path, first, IMAGE_NAMES)
    columns = choose_columns(
        sample, subject=f"file {path}", image=image_column, caption=caption_column, short=short_caption_column
    )
    root = Path(image_root) if image_root is not None else path.parent
    rows = _rows(path) if columns else ()  # without a row there are no columns
    parse = partial(_parse, encoding=encoding_of_file(path).name)
    return list_rows("json", path, rows, parse=parse, columns=columns, root=root, skip_missing=skip_missing)


def check_form(path: Path, first: list[Any], wanted: tuple[str, ...]) -> None:
    """ValueError unless some of a file's first elements is an object with one of the keys `wanted`."""
    names = dict.fromkeys(name for value in first for name in (value if isinstance(value, dict) else ()))
    if first and not any(name.lower() in wanted for name in names):
        names = [value[0] for value in first if isinstance(value, tuple)] or list(names)
        kinds = "objects without keys" if isinstance(first[0], dict) else f"{type(first[0]).__name__}, no objects"
        found = f"its keys are {list_names(names)}" if names else f"it holds {kinds}"
        raise ValueError(f"{path} has none of the known forms, {found}; the known forms are {FORMS}.")


def _is_by_file(first: list[Any]) -> bool:
    """Whether a file is an object whose names are pictures."""
    return any(isinstance(value, tuple) and value[0].lower().endswith(SUFFIXES) for value in first)


def _rows(path: Path) -> Iterator[Row]:
    for element in scan_json(path):
        fault, place = None, None
        if element.fault is not None:
            fault, place = NOT_UTF8, f"byte {element.fault:,} of {path.name}"
        elif not isinstance(element.value, dict | tuple):
            fault = BROKEN
        yield Row(element.start, element.size, {} if fault else _values_of(element.value), fault, place)


def _values_of(value: Any) -> Mapping[str, Any]:
    return {_IMAGE: value[0], _CAPTION: value[1]} if isinstance(value, tuple) else value


def _parse(content: bytes, *, encoding: str) -> Mapping[str, Any]:
    return _values_of(parse_element(content.decode(encoding)))
