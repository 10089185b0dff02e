"""The embedded world's exact checker as a judge: the things that a sentence names, read from pixels alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from debias_sd.judges.verdict import Thresholds, Verdict, unjudged
from debias_sd.shapes.check import read_picture
from debias_sd.shapes.reading import read_sentence


@dataclasses.dataclass(frozen=True)
class CheckerJudge:
    """Judges pictures of the embedded world (48 x 48 pixels or whole multiples) and sentences in its words."""

    thresholds: Thresholds = Thresholds(1.0, 1.0, "exact")
    name: str = "checker"
    meaning: str = "share of the sentence's things whose cell shows their colour, shape and size"

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """Drawn where all things of the sentence are; unjudged where it names none completely."""
        cells = read_picture(np.asarray(image.convert("RGB")))
        verdicts = []
        for sentence in sentences:
            things = read_sentence(sentence)
            if not things:
                verdicts.append(unjudged(sentence, "the sentence names no thing with size, colour, shape and place"))
                continue
            score = sum(cells[thing.cell].thing == thing for thing in things) / len(things)
            verdicts.append(Verdict(sentence, score, self.thresholds.mark(score)))
        return verdicts

    def describe(self) -> dict[str, Any]:
        return {"kind": "checker", "meaning": self.meaning, "thresholds": dataclasses.asdict(self.thresholds)}
