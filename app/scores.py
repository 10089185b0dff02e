"""Scores over seeds: late details of one picture are few, and the interval says what one picture is worth."""

from __future__ import annotations

import math
from collections.abc import Sequence

from debias_sd.comparison import Sentence
from debias_sd.shapes.render import CELL, SIDE

# Two-sided 95 % quantiles of Student's t for 1 to 7 degrees of freedom: 2 to 8 seeds.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)


def boxes_of(sentence: Sentence) -> list[tuple[float, float, float, float]]:
    """Where the checker looked, in percent of the picture: left, top, width, height of each thing's cell."""
    return [
        (
            100 * (thing.cell % 3) * CELL / SIDE,
            100 * (thing.cell // 3) * CELL / SIDE,
            100 * CELL / SIDE,
            100 * CELL / SIDE,
        )
        for thing in dict.fromkeys(sentence.things)
    ]


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def interval_of(values: Sequence[float | None], *, low: float = 0, high: float = 100) -> tuple[float, float] | None:
    """The 95 % interval of the mean over seeds (Student's t), cut to [low, high]; None for fewer than two values.

    >>> interval_of([50.0, 50.0, 50.0])
    (50.0, 50.0)
    >>> [round(end, 1) for end in interval_of([40.0, 60.0, 50.0, 50.0])]
    [37.0, 63.0]
    >>> interval_of([50.0]) is None
    True
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    reach = _T95[min(len(known) - 1, len(_T95)) - 1] * spread / math.sqrt(len(known))
    return max(low, mean - reach), min(high, mean + reach)
