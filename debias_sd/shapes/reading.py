"""Read a sentence back: which things, in which cells, does it name?

The inverse of `caption.py`, for prompts that a person typed. It finds noun phrases (size, colour, shape) and places in
the order in which they stand; the n-th place belongs to the n-th thing. A sentence that names no complete thing gives
an empty list, and is then not judged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from debias_sd.shapes.caption import ROW_WORDS, SHAPE_WORDS, SIZE_WORDS
from debias_sd.shapes.scene import COLOURS, COLUMNS, ROWS, Thing


def _inverse(words: dict[str, tuple[str, ...]]) -> dict[str, str]:
    return {word: name for name, synonyms in words.items() for word in synonyms}


_SHAPE_OF, _SIZE_OF, _ROW_OF = _inverse(SHAPE_WORDS), _inverse(SIZE_WORDS), _inverse(ROW_WORDS)
_THING = re.compile(
    rf"\b({'|'.join(_SIZE_OF)})\s+({'|'.join(COLOURS)})\s+({'|'.join(_SHAPE_OF)})s?\b",
    re.IGNORECASE,
)
_PLACE = re.compile(
    rf"\b(?:({'|'.join(_ROW_OF)})\s+({'|'.join(COLUMNS)}|middle)|(center|middle))\b",
    re.IGNORECASE,
)


def read_sentence(sentence: str) -> list[Thing]:
    """The things that `sentence` names with size, colour, shape and place; `[]` when it names none completely."""
    looks = _THING.findall(sentence)
    cells = []
    for row, column, _ in _PLACE.findall(sentence):
        if row:
            column = "center" if column.lower() == "middle" else column.lower()
            cells.append(3 * ROWS.index(_ROW_OF[row.lower()]) + COLUMNS.index(column))
        else:
            cells.append(4)
    if not looks or len(looks) != len(cells):
        return []
    return [
        Thing(cell, colour.lower(), _SHAPE_OF[shape.lower()], _SIZE_OF[size.lower()])
        for cell, (size, colour, shape) in zip(cells, looks, strict=True)
    ]


def repeated(sentences: Sequence[str]) -> list[bool]:
    """Whether each sentence names things, and only such as the first one, the summary, names too.

    >>> first = "There is a small red star in the top left and a large blue ring in the center."
    >>> repeated([first, "A large blue ring sits in the center.", "A dog runs."])
    [False, True, False]
    """
    named = [read_sentence(sentence) for sentence in sentences]
    return [index > 0 and bool(things) and set(things) <= set(named[0]) for index, things in enumerate(named)]
