"""Where a sentence stands in a text: half or quarter, after how many words; and which ones are late details.

A prompt's first sentence is its summary, the others are its details. Late are the sentences in the second half of the
details that say more than the summary: a sentence whose things the summary names too (in the words of the embedded
world, `shapes.caption.repeated`) is left out, for such a thing may be drawn where only the summary was read.
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

MOST_SENTENCES = 12  # the later ones count together
WORDS_A_BIN = 20
MOST_BINS = 12
QUARTERS = 4
WAYS = ("by_sentence", "by_words", "by_quarter")


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
    that it names is in the summary too.
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


@dataclasses.dataclass(frozen=True)
class Place:
    """One place of one caption: sentence `sentence` (from 0) of `sentences`, with `before` words in front of it."""

    caption: int
    sentence: int
    sentences: int
    before: int

    def bins(self) -> tuple[int, int, int]:
        """The number of its bin in each of WAYS."""
        return (
            min(self.sentence, MOST_SENTENCES - 1),
            word_bin(self.before),
            QUARTERS * self.sentence // self.sentences,
        )


def word_bin(before: int) -> int:
    """The bin of a word with `before` words in front of it.

    >>> [word_bin(before) for before in (0, 19, 20, 500)]
    [0, 0, 1, 11]
    """
    return min(before // WORDS_A_BIN, MOST_BINS - 1)


def names_of(way: str) -> list[str]:
    """What the bins of one of WAYS are called in reports.

    >>> names_of("by_words")[:2], names_of("by_words")[-1], names_of("by_quarter")
    (['0-19', '20-39'], '220+', ['1', '2', '3', '4'])
    """
    if way == "by_words":
        starts = range(0, WORDS_A_BIN * MOST_BINS, WORDS_A_BIN)
        return [f"{start}-{start + WORDS_A_BIN - 1}" for start in starts[:-1]] + [f"{starts[-1]}+"]
    if way == "by_quarter":
        return [str(number + 1) for number in range(QUARTERS)]
    return [str(number + 1) for number in range(MOST_SENTENCES - 1)] + [f"{MOST_SENTENCES}+"]


def bins_of(places: Sequence[Place]) -> dict[str, Int[np.ndarray, " places"]]:
    """The number of each place's bin, by way."""
    found = np.array([place.bins() for place in places], dtype=np.int64).reshape(-1, len(WAYS))
    return dict(zip(WAYS, found.T, strict=True))
