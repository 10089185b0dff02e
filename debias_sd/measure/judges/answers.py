"""Models that answer a question about a picture, as judges: how likely is yes against no?

score = P(yes) / (P(yes) + P(no)). For a model that writes text, P is the probability of its next token, summed over the
ways in which its tokenizer writes the word (Yes, yes, " yes", ...). For BLIP, which was trained to write short answers,
it is that of the whole answer. A model that would say something else altogether has not answered: such a sentence
counts as unjudged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from debias_sd.measure.judges.questions import ANSWER, question_of
from debias_sd.measure.judges.verdict import Thresholds, Verdict, unjudged

LEAST = 0.01  # P(yes) + P(no) below which the model has not answered
NO_ANSWER = "the model answers neither yes nor no"
NO_WORDS = "there is no word in it"


@runtime_checkable
class Answerer(Protocol):
    """A loaded model with what prepares its input; `kind` is its name in transformers."""

    kind: str

    def yes_and_no(self, image: Image.Image, questions: Sequence[str]) -> Float[Tensor, "questions 2"]:
        """Return log P(yes) and log P(no) of each question, float32 on the CPU."""
        ...


@dataclasses.dataclass(frozen=True)
class AnswerJudge:
    """Asks a model about every sentence, `batch` questions at a time."""

    answerer: Answerer
    source: str
    sha256: str
    thresholds: Thresholds = Thresholds()
    batch: int = 8
    answer: str = ANSWER
    meaning: str = "probability of yes against no to whether the picture shows the sentence"

    @property
    def name(self) -> str:
        return f"vqa:{self.source}"

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """Score every sentence; unjudged is one without a word, and one that the model gives no answer to."""
        image = image.convert("RGB")
        asked = [sentence for sentence in sentences if any(character.isalnum() for character in sentence)]
        questions = [question_of(sentence, answer=self.answer) for sentence in dict.fromkeys(asked)]
        logs = [
            self.answerer.yes_and_no(image, questions[at : at + self.batch])
            for at in range(0, len(questions), self.batch)
        ]
        rows = dict(zip(dict.fromkeys(asked), torch.cat(logs), strict=True)) if logs else {}
        return [
            self._verdict(sentence, rows[sentence]) if sentence in rows else unjudged(sentence, NO_WORDS)
            for sentence in sentences
        ]

    def _verdict(self, sentence: str, logs: Float[Tensor, " 2"]) -> Verdict:
        if not torch.isfinite(logs).all():
            raise ValueError(
                f"judge {self.name} gives NaN for {sentence!r}: numbers overflowed in the model; load it in float32 or "
                "bfloat16."
            )
        if float(logs.exp().sum()) < LEAST:
            return unjudged(sentence, NO_ANSWER)
        score = float(logs.softmax(dim=0)[0])
        return Verdict(sentence, score, self.thresholds.mark(score))

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.answerer.kind,
            "meaning": self.meaning,
            "source": self.source,
            "sha256": self.sha256,
            "question": question_of("SENTENCE", answer=self.answer),
            "thresholds": dataclasses.asdict(self.thresholds),
        }
