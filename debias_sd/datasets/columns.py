"""Which column of a user's own table is the picture, which the caption, which the short caption.

Names in use: `file_name`, `text` (Hugging Face's image folders), `filepath`, `title` (open_clip), `image`, `caption`,
`caption_short` (people who train Long-CLIP). A table with several texts (title, summary, description) has its caption
in the one whose texts are longest; whoever wants another names it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IMAGE_NAMES = ("file_name", "filepath", "image", "image_path", "file_path", "filename", "image_file", "img", "path")
CAPTION_NAMES = ("caption", "captions", "text", "texts", "long_caption", "description", "title", "summary")
SHORT_NAMES = ("caption_short", "short_caption")
SAMPLE = 100  # rows that decide which text is the longest


@dataclass(frozen=True)
class Columns:
    """The chosen columns; `short` is None where there is none."""

    image: str
    caption: str
    short: str | None = None

    def text_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The captions of a row, white space folded, empty ones left out; a list of captions gives several."""
        value = row.get(self.caption)
        found = (fold(text) for text in (value if isinstance(value, list) else [value]))
        return tuple(text for text in found if text)

    def short_of(self, row: Mapping[str, Any]) -> str | None:
        """The short caption of a row, or None."""
        return (fold(row.get(self.short)) or None) if self.short else None


def fold(value: Any) -> str:
    """`value` as text in one line, white space folded to single spaces; None gives an empty text."""
    return " ".join(str(value).split()) if value is not None else ""


def choose_columns(
    rows: Sequence[Mapping[str, Any]],
    *,
    subject: str,
    image: str | None = None,
    caption: str | None = None,
    short: str | None = None,
) -> Columns | None:
    """Choose by the names in the first `SAMPLE` rows, or take the given ones; None when there are no rows.

    ValueError with one sentence when a given column is not there, or none of the known names is.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name))
    if not names:
        return None
    chosen_image = _choose(names, image, IMAGE_NAMES, subject=subject, what="image_column")
    texts = _known(names, CAPTION_NAMES)
    if caption is None and len(texts) > 1:
        length = {name: sum(len(fold(row.get(name))) for row in rows) for name in texts}
        caption = max(texts, key=lambda name: length[name])  # the first of equals
    chosen = _choose(names, caption, CAPTION_NAMES, subject=subject, what="caption_column")
    if short is not None:
        short = _choose(names, short, SHORT_NAMES, subject=subject, what="short_caption_column")
    else:
        short = next((name for name in _known(names, SHORT_NAMES) if name != chosen), None)
    return Columns(chosen_image, chosen, short)


def _known(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The `names` that are known, in the order of `known`; upper case is let through."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return [by_lower[name] for name in known if name in by_lower]


def _choose(names: Sequence[str], given: str | None, known: Sequence[str], *, subject: str, what: str) -> str:
    if given is not None:
        if given in names:
            return given
        near = difflib.get_close_matches(given, names, n=1, cutoff=0.0)[0]
        raise ValueError(f"{subject} has no column {given!r}, it has {', '.join(names)}; the nearest is {near!r}.")
    found = _known(names, known)
    if found:
        return found[0]
    # The two names that Hugging Face's image folders have stand for the whole list.
    raise ValueError(
        f"{subject} lacks file_name or text, it has {', '.join(names)}; write both, or name the columns "
        f"with {what} (known without: {', '.join(known)})."
    )
