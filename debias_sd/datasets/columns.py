"""Which column of a user's own table is the picture, which the caption, which the short caption; and what is in them.

Names in use: `file_name`, `text` (Hugging Face's image folders), `filepath`, `title` (open_clip), `image`, `caption`,
`caption_short` (people who train Long-CLIP). A table with several texts (title, summary, description) has its caption
in the one whose texts are longest; whoever wants another names it. Only text is a caption: a number, NaN or an object
is a fault of its own kind, never written out as text.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

IMAGE_NAMES = ("file_name", "filepath", "image", "image_path", "file_path", "filename", "image_file", "img", "path")
CAPTION_NAMES = ("caption", "captions", "text", "texts", "long_caption", "description", "title", "summary")
SHORT_NAMES = ("caption_short", "short_caption")
SAMPLE = 100  # rows that decide which text is the longest
_LISTED = 20  # names that a sentence lists


class NoText(ValueError):
    """What stands where a text should be; its text is the kind of the fault, as in "caption that is a number"."""


@dataclass(frozen=True)
class Columns:
    """The chosen columns; `image` is None where the picture has no column, `short` where there is none.

    `found` are the names of all columns, to be told when nothing can be used.
    """

    image: str | None
    caption: str
    short: str | None = None
    found: tuple[str, ...] = ()

    def text_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        """The captions of a row, white space folded, empty ones left out; a list of captions gives several.

        NoText for anything but text, None, and a list of these.
        """
        return texts_of(row.get(self.caption))

    def short_of(self, row: Mapping[str, Any]) -> str | None:
        """The short caption of a row, or None; NoText for anything but text, None and NaN (pandas' missing text)."""
        value = row.get(self.short) if self.short else None
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return None
        return fold(check_text(value, "short caption")) or None


def texts_of(value: Any) -> tuple[str, ...]:
    """A text or a list of texts as captions, folded, without empty ones; NoText for anything else but None."""
    if isinstance(value, str):
        text = fold(value)
        return (text,) if text else ()
    if isinstance(value, list) and not all(one is None or isinstance(one, str) for one in value):
        raise NoText("caption that is a list of other things than texts")
    found = (fold(check_text(one)) for one in (value if isinstance(value, list) else [value]) if one is not None)
    return tuple(text for text in found if text)


def check_text(value: Any, what: str = "caption") -> str:
    """Return `value` when it is text; NoText says what it is."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        kind = "true or false"
    elif isinstance(value, float) and not math.isfinite(value):
        kind = "NaN or Infinity"
    elif isinstance(value, int | float):
        kind = "a number"
    else:
        kind = {list: "a list", dict: "an object"}.get(type(value), f"of type {type(value).__name__}")
    raise NoText(f"{what} that is {kind}")


def fold(text: str) -> str:
    """`text` in one line, white space folded to single spaces."""
    return " ".join(text.split())


def list_names(names: Iterable[str]) -> str:
    """Names for a sentence, the first twenty of them."""
    names = [name if len(name) <= 80 else f"{name[:79]}…" for name in names]
    return ", ".join(names[:_LISTED]) + (f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else "")


def choose_columns(
    rows: Sequence[Mapping[str, Any]],
    *,
    subject: str,
    image_column: str | None = None,
    caption_column: str | None = None,
    short_caption_column: str | None = None,
    with_image: bool = True,
) -> Columns | None:
    """Choose by the names in the first `SAMPLE` rows, or take the given ones; None when there are no rows.

    ValueError with one sentence when a given column is not there, or none of the known names is.
    """
    names = list(dict.fromkeys(name for row in rows for name in row if name))
    if not names:
        return None
    image, caption, short = image_column, caption_column, short_caption_column
    image = _choose(names, image, IMAGE_NAMES, subject=subject, what="image_column") if with_image else None
    texts = _known(names, CAPTION_NAMES)
    if caption is None and len(texts) > 1:
        length = {name: sum(_length(row.get(name)) for row in rows) for name in texts}
        caption = max(texts, key=lambda name: length[name])  # the first of equals
    chosen = _choose(names, caption, CAPTION_NAMES, subject=subject, what="caption_column", with_image=with_image)
    if short is not None:
        short = _choose(names, short, SHORT_NAMES, subject=subject, what="short_caption_column")
    else:
        short = next((name for name in _known(names, SHORT_NAMES) if name != chosen), None)
    return Columns(image, chosen, short, tuple(names))


def _length(value: Any) -> int:
    try:
        return sum(map(len, texts_of(value)))
    except NoText:
        return 0


def _known(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The `names` that are known, in the order of `known`; upper case counts as lower case."""
    by_lower = {name.lower(): name for name in reversed(names)}
    return [by_lower[name] for name in known if name in by_lower]


def _choose(
    names: Sequence[str], given: str | None, known: Sequence[str], *, subject: str, what: str, with_image: bool = True
) -> str:
    if given is not None:
        if given in names:
            return given
        near = difflib.get_close_matches(given, names[:1000], n=1, cutoff=0.0)[0]
        raise ValueError(f"{subject} has no column {given!r} but has {list_names(names)}; the nearest is {near!r}.")
    found = _known(names, known)
    if found:
        return found[0]
    # The two names that Hugging Face's image folders have stand for the whole list.
    wanted = "file_name or text" if with_image else "a caption"
    raise ValueError(
        f"{subject} lacks {wanted} but has {list_names(names)}; write {'both' if with_image else 'one'}, or name the "
        f"columns with {what} (known without: {', '.join(known)})."
    )
