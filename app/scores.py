"""What became of a prompt in pictures: a verdict a sentence, late details by quarter, the mean over seeds.

The late-detail score is the reports' (`debias_sd.measure.late_details`). Late details of one picture are few: the
interval over seeds says what one picture is worth.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from debias_sd.comparison import Sentence
from debias_sd.measure.judges.checker import CheckerJudge
from debias_sd.measure.pictures import shares
from debias_sd.measure.pictures.shares import Score
from debias_sd.shapes.check import CellReading, judge, templates
from debias_sd.shapes.render import CELL, SIDE, cell_box
from debias_sd.shapes.scene import CELLS, Thing

# Two-sided 95 % quantiles of Student's t for 1 to 7 degrees of freedom: 2 to 8 seeds.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One sentence in one picture. `mark`: drawn, `1 of 2`, missing, unsure, not read or not judged."""

    mark: str
    score: float | None
    found: str


def verdicts_of(image: np.ndarray, sentences: Sequence[Sentence], *, window: int) -> tuple[Verdict, ...]:
    """A verdict for every sentence; `window` tells a thing that was not drawn from one that was not read."""
    if not any(sentence.things for sentence in sentences):
        return tuple(Verdict("not judged", None, "") for _ in sentences)
    pixels = image.reshape(SIDE, image.shape[0] // SIDE, SIDE, -1, 3).mean(axis=(1, 3))
    return tuple(_verdict(pixels, sentence, window=window) for sentence in sentences)


def _verdict(pixels: np.ndarray, sentence: Sentence, *, window: int) -> Verdict:
    if not sentence.things:
        return Verdict("not judged", None, "")
    judged = judge(pixels, sentence.things)
    score = float(np.mean([likeness(pixels, v.thing) for v in judged]))
    drawn = sum(v.drawn for v in judged)
    found = "; ".join(_in_words(v.found, v.thing) for v in judged if not v.drawn)
    if drawn == len(judged):
        return Verdict("drawn", score, "")
    if any(v.unsure and not v.drawn for v in judged):
        return Verdict("unsure", score, found)
    if drawn:
        return Verdict(f"{drawn} of {len(judged)}", score, found)
    return Verdict("not read" if sentence.first >= window - 1 else "missing", score, found)


def likeness(pixels: np.ndarray, thing: Thing) -> float:
    """How much nearer the thing's cell is to what the sentence asks for than to all else that the world can draw.

    other / (asked + other): mean squared differences of the cell of `pixels`, float [48, 48, 3], to the nearest tile of
    that look and of any other, on any background. 1 is exactly what was asked for, 0 exactly something else; what is
    above 0.5 the checker calls drawn.
    """
    tiles, names = templates()
    differences = ((tiles - pixels[cell_box(thing.cell)].astype(np.float32).reshape(-1)) ** 2).mean(axis=1)
    is_asked = np.array([look == (thing.colour, thing.shape, thing.size) for _, look in names])
    asked, other = float(differences[is_asked].min()), float(differences[~is_asked].min())
    return other / (asked + other)


def _in_words(found: CellReading, thing: Thing) -> str:
    there = "nothing" if found.thing is None else f"a {found.thing.size} {found.thing.colour} {found.thing.shape}"
    return f"{there} in the {CELLS[thing.cell]}"


def score_of(image: np.ndarray, sentences: Sequence[Sentence]) -> Score:
    """The late-detail score of one picture, the details' quarters, and the share of all sentences."""
    return shares.score_of(CheckerJudge().judge(Image.fromarray(image), [sentence.text for sentence in sentences]))


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
