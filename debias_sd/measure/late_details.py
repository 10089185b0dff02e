"""Which sentences of a prompt are its late details.

A prompt's first sentence is its summary, the others are its details. Late are the sentences in the second half of the
details that say more than the summary: a sentence whose things the summary names too (in the words of the embedded
world, `shapes.reading.repeated`) is left out, for such a thing may be drawn where only the summary was read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from debias_sd.prompts.batch import SHORT
from debias_sd.sentences import split_sentences
from debias_sd.shapes.caption import repeated


def half_of(index: int, details: int) -> int:
    """0 or 1: the half of the `details` sentences in which sentence `index` (1 .. details) stands.

    >>> [half_of(index, 5) for index in (1, 2, 3, 4, 5)]
    [0, 0, 1, 1, 1]
    """
    return int(2 * (index - 0.5) >= details)


@dataclasses.dataclass(frozen=True)
class Sentences:
    """The sentences of many prompts, one entry each; `number` 0 is a prompt's summary, `details` counts the others.

    `start` is the sentence's first token as the base pipeline's own tokenizer counts (the start token is 0), `tokens`
    the number of a prompt's tokens with start and end; both are 0 where no tokenizer was given. `repeats`: whether all
    that it names stands in the summary too.
    """

    texts: tuple[tuple[str, ...], ...]  # by prompt
    prompt: Int[np.ndarray, " sentences"]
    number: Int[np.ndarray, " sentences"]
    details: Int[np.ndarray, " sentences"]
    start: Int[np.ndarray, " sentences"]
    repeats: Bool[np.ndarray, " sentences"]
    tokens: Int[np.ndarray, " prompts"]

    @property
    def quarter(self) -> Int[np.ndarray, " sentences"]:
        """0..3 within the details, -1 for the summary."""
        place = 4 * (self.number - 0.5) / np.maximum(self.details, 1)
        return np.where(self.number > 0, place.astype(int), -1)

    @property
    def half(self) -> Int[np.ndarray, " sentences"]:
        """0 or 1 within the details, -1 for the summary."""
        pairs = zip(self.number, self.details, strict=True)
        return np.array([half_of(int(number), int(details)) if number else -1 for number, details in pairs], dtype=int)

    @property
    def is_late(self) -> Bool[np.ndarray, " sentences"]:
        """Whether it is a late detail."""
        return (self.half == 1) & ~self.repeats

    @property
    def is_past_77(self) -> Bool[np.ndarray, " sentences"]:
        """Whether it is a detail, none that the summary names, which begins where a window of 77 has ended."""
        return (self.number > 0) & (self.start >= SHORT - 1) & ~self.repeats


def sentences_in(prompts: Sequence[str], tokenizer: Any = None) -> Sentences:
    """Split prompts into their sentences and count where each stands."""
    return sentences_of([split_sentences(prompt) for prompt in prompts], tokenizer)


def sentences_of(texts: Sequence[Sequence[str]], tokenizer: Any = None) -> Sentences:
    """The same of prompts that are split."""
    rows, tokens = [], []
    options = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    for place, sentences in enumerate(texts):
        counts = [0] * len(sentences)
        if tokenizer is not None:
            counts = [len(ids) for ids in tokenizer(list(sentences), **options)["input_ids"]]
        start = 1
        for number, (count, repeats) in enumerate(zip(counts, repeated(sentences), strict=True)):
            rows.append((place, number, len(sentences) - 1, start if tokenizer is not None else 0, repeats))
            start += count
        tokens.append(start + 1 if tokenizer is not None else 0)
    *columns, repeats = np.array(rows, dtype=int).reshape(-1, 5).T
    return Sentences(tuple(map(tuple, texts)), *columns, repeats.astype(bool), np.array(tokens))
