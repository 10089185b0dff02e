"""The sentences of many prompts in one table, each with its place; what judges say of them beside it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from PIL import Image

from debias_sd.attention import half_of
from debias_sd.captions import split_sentences
from debias_sd.generation.drawing import Album
from debias_sd.judges.verdict import DRAWN, UNSURE, Judge, Verdict

Progress = Callable[[int], object]


@dataclasses.dataclass(frozen=True)
class Sentences:
    """One entry a sentence; `number` 0 is a prompt's first, its summary, the `details` others are its details.

    `start` is the sentence's first token as the base pipeline's own tokenizer counts (the start token is 0), `tokens`
    the number of a prompt's tokens with start and end.
    """

    texts: tuple[tuple[str, ...], ...]  # by prompt
    prompt: Int[np.ndarray, " sentences"]
    number: Int[np.ndarray, " sentences"]
    details: Int[np.ndarray, " sentences"]
    start: Int[np.ndarray, " sentences"]
    tokens: Int[np.ndarray, " prompts"]

    @property
    def quarter(self) -> Int[np.ndarray, " sentences"]:
        """0..3 within the details, -1 for the summary."""
        place = 4 * (self.number - 0.5) / np.maximum(self.details, 1)
        return np.where(self.number > 0, place.astype(int), -1)

    @property
    def is_late(self) -> Bool[np.ndarray, " sentences"]:
        """Whether it is in the second half of the details."""
        pairs = zip(self.number, self.details, strict=True)
        return np.array([number > 0 and half_of(int(number), int(details)) == 1 for number, details in pairs])


def sentences_in(prompts: Sequence[str], tokenizer: Any) -> Sentences:
    """Split prompts into their sentences and count where each stands."""
    texts, rows, tokens = [], [], []
    for place, prompt in enumerate(prompts):
        sentences = split_sentences(prompt)
        texts.append(tuple(sentences))
        start = 1
        options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
        for number, ids in enumerate(tokenizer(sentences, **options)["input_ids"]):
            rows.append((place, number, len(sentences) - 1, start))
            start += len(ids)
        tokens.append(start + 1)
    columns = np.array(rows, dtype=int).T
    return Sentences(tuple(texts), *columns, np.array(tokens))


@dataclasses.dataclass(frozen=True)
class Table:
    """What one judge says of one encoder's pictures, a row a seed, a column a sentence; unjudged scores are NaN."""

    score: Float[np.ndarray, "seeds sentences"]
    drawn: Bool[np.ndarray, "seeds sentences"]
    unsure: Bool[np.ndarray, "seeds sentences"]
    reasons: dict[str, int]

    @property
    def is_judged(self) -> Bool[np.ndarray, "seeds sentences"]:
        return np.isfinite(self.score)


def judge_album(
    judge: Judge, album: Album, sentences: Sentences, *, shift: int = 0, progress: Progress = lambda count: None
) -> Table:
    """Judge every picture against its prompt's sentences, or those of the prompt `shift` further on: the floor.

    A shifted table has its columns in the order of the prompts that are asked about. ValueError where a picture is
    gone.
    """
    rows, count = [], len(sentences.texts)
    for shots in album.shots:
        verdicts: list[Verdict] = []
        for asked in range(count):
            image = _opened(shots[(asked - shift) % count])
            verdicts += judge.judge(image, sentences.texts[asked])
            progress(1)
        rows.append(verdicts)
    flat = [verdict for row in rows for verdict in row]
    return Table(
        np.array([[verdict.score if verdict.is_judged else np.nan for verdict in row] for row in rows]),
        np.array([[verdict.is_judged and verdict.mark == DRAWN for verdict in row] for row in rows]),
        np.array([[verdict.is_judged and verdict.mark == UNSURE for verdict in row] for row in rows]),
        dict(Counter(verdict.reason for verdict in flat if not verdict.is_judged)),
    )


def _opened(shot: Any) -> Image.Image:
    image = shot.read()
    if image is None:
        raise ValueError(f"picture {shot.path} is gone or was changed while it was judged; run the command again.")
    return image
