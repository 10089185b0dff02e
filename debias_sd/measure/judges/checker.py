"""The embedded world's exact checker as a judge: the things that a sentence names, read from pixels alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from debias_sd.measure.judges.verdict import DRAWN, MISSING, UNSURE, Thresholds, Verdict, unjudged
from debias_sd.shapes.caption import read_sentence
from debias_sd.shapes.render import CellReading, Finding, look_for, read_picture
from debias_sd.shapes.scene import CELLS

NO_THING = "the sentence names no thing with size, colour, shape and place"


@dataclasses.dataclass(frozen=True)
class CheckerJudge:
    """Judges pictures of the embedded world (48 x 48 pixels or whole multiples) and sentences in its words."""

    thresholds: Thresholds = Thresholds(1.0, 1.0, "exact")
    name: str = "checker"
    meaning: str = "share of the sentence's things whose cell shows their colour, shape and size"

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """Drawn where all things of the sentence are; unjudged where it names none completely.

        Unsure where a thing is not there and its cell looks like no tile at all; else `1 of 2` where some things are.
        """
        cells = read_picture(np.asarray(image.convert("RGB")))
        return [self._verdict(cells, sentence) for sentence in sentences]

    def _verdict(self, cells: Sequence[CellReading], sentence: str) -> Verdict:
        things = read_sentence(sentence)
        if not things:
            return unjudged(sentence, NO_THING)
        findings = look_for(cells, things)
        lost = [finding for finding in findings if not finding.drawn]
        count = len(things) - len(lost)
        if not lost:
            mark = DRAWN
        elif any(finding.unsure for finding in lost):
            mark = UNSURE
        else:
            mark = f"{count} of {len(things)}" if count else MISSING
        words = "; ".join(map(_in_words, lost))
        return Verdict(sentence, count / len(things), mark, found=words, aspects=_aspects(findings))

    def unnamed(self, image: Image.Image, sentences: Sequence[str]) -> tuple[int, int]:
        """How many cells no sentence names, and in how many of them something was drawn."""
        named = {thing.cell for sentence in sentences for thing in read_sentence(sentence)}
        cells = read_picture(np.asarray(image.convert("RGB")))
        others = [reading.thing is not None for cell, reading in enumerate(cells) if cell not in named]
        return len(others), sum(others)

    def describe(self) -> dict[str, Any]:
        return {"kind": "checker", "meaning": self.meaning, "thresholds": dataclasses.asdict(self.thresholds)}


def _aspects(findings: Sequence[Finding]) -> dict[str, float]:
    """Shares of the things in whose cell is anything, and anything of their colour, of their shape."""
    there = [(finding.thing, finding.found.thing) for finding in findings]
    right = {part: [f is not None and getattr(f, part) == getattr(t, part) for t, f in there]
             for part in ("colour", "shape")}  # fmt: skip
    right["anything"] = [found is not None for _, found in there]
    return {name: sum(values) / len(values) for name, values in right.items()}


def _in_words(finding: Finding) -> str:
    thing = finding.found.thing
    there = "nothing" if thing is None else f"a {thing.size} {thing.colour} {thing.shape}"
    return f"{there} in the {CELLS[finding.thing.cell]}"
