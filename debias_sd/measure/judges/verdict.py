"""What a judge says about one sentence in one picture, and what a judge is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from PIL import Image

DRAWN, MISSING, UNSURE = MARKS = ("drawn", "missing", "unsure")
NOT_READ, NOT_JUDGED = "not read", "not judged"


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One sentence against one picture.

    `score`: 0..1, what it means is the judge's to state (`Judge.meaning`). `mark`: drawn, missing or unsure, by the
    judge's thresholds; of a judge that counts things also `1 of 2`, which is not drawn and not unsure. `reason`: why
    the sentence could not be judged, empty where it was; such a sentence has no score and the mark `not judged`, and
    reports count it apart. `found`: what is there instead, in words, where the judge can tell. `aspects`: shares of the
    sentence's things that are right in part, 0..1 by name.
    """

    sentence: str
    score: float | None
    mark: str
    reason: str = ""
    found: str = ""
    aspects: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def is_judged(self) -> bool:
        return not self.reason

    def read(self, *, first: int, window: int | None) -> Verdict:
        """The verdict for an encoder that reads `window` tokens, of a sentence whose first token is number `first`.

        What is missing and begins where only the end token has room, or later, was `not read`; None reads everything.
        """
        unread = self.mark == MISSING and window is not None and first >= window - 1
        return dataclasses.replace(self, mark=NOT_READ) if unread else self


@dataclasses.dataclass(frozen=True)
class Thresholds:
    """Drawn from the score `drawn` on, missing below `missing`, unsure between; None: no score is ever enough.

    `source` says where they come from. The ones that a judge starts with are a guess and say so: see `calibration`.
    """

    drawn: float | None = 0.6
    missing: float | None = 0.4
    source: str = "not calibrated"

    def mark(self, score: float) -> str:
        """Return drawn, missing or unsure."""
        if self.drawn is not None and score >= self.drawn:
            return DRAWN
        return MISSING if self.missing is not None and score < self.missing else UNSURE


@runtime_checkable
class Judge(Protocol):
    """Says for each sentence whether a picture shows it."""

    name: str  # as reports and the app show it, with the model's name
    meaning: str  # one line: what the score is
    thresholds: Thresholds

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """A verdict for every sentence; ValueError with one sentence where the model gives no finite number."""
        ...

    def describe(self) -> dict[str, Any]:
        """What identifies the judge in a report: where its model lies, the SHA-256 of its weights, its settings."""
        ...


def unjudged(sentence: str, reason: str) -> Verdict:
    """The verdict on a sentence that cannot be judged."""
    return Verdict(sentence, None, NOT_JUDGED, reason)
