"""Captions with one sentence dropped or one word swapped, and the place of each change: by sentence, words, quarter.

A caption is read with its white space folded, so that its sentences lie one space apart. Rules, all deterministic:

* drop: every sentence of a caption that has at least two, one at a time.
* swap: one word a sentence. Where a word names a detail (colour, number, size, side, material, thing: `judges.details`)
  it is replaced by another of its kind; which of these words and which other word depends on the sentence alone. Where
  none does, the longest word of the sentence (the first of these) is replaced by the longest word of the sentence at
  the same place of another caption: the next one, in the order of the set, that has another word there.
* thing: in captions of the embedded world, another colour and another shape for the thing that a sentence names first.
  Sentences about what the summary names too are left out: it would still name them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from jaxtyping import Int

from debias_sd.measure.judges.details import changes_of
from debias_sd.sentences import join_sentences, split_sentences
from debias_sd.shapes.caption import SHAPE_WORDS, read_sentence, repeated
from debias_sd.shapes.scene import COLOURS, SHAPES, Thing

MOST_SENTENCES = 12  # the later ones count together
WORDS_A_BIN = 20
MOST_BINS = 12
QUARTERS = 4
WAYS = ("by_sentence", "by_words", "by_quarter")
_WORD = re.compile(r"[^\W\d_]+")


@dataclasses.dataclass(frozen=True)
class Text:
    """A caption as it is read: its sentences, one space between them."""

    sentences: tuple[str, ...]

    @property
    def whole(self) -> str:
        return join_sentences(self.sentences)

    @property
    def words(self) -> list[int]:
        """Words of each sentence, being what white space parts."""
        return [len(sentence.split()) for sentence in self.sentences]

    @property
    def starts(self) -> list[int]:
        """Words in front of each sentence."""
        return [0, *accumulate(self.words)][:-1]


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


@dataclasses.dataclass(frozen=True)
class Change:
    """A caption with one change; `rule`: drop, detail, same place or thing."""

    place: Place
    text: str
    rule: str


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


def texts_of(captions: Sequence[str]) -> tuple[list[Text], int]:
    """The captions of two sentences or more, and how many have fewer."""
    texts = [Text(tuple(split_sentences(caption))) for caption in captions]
    kept = [text for text in texts if len(text.sentences) > 1]
    return kept, len(texts) - len(kept)


def drops_of(texts: Sequence[Text]) -> list[Change]:
    """Every caption without each of its sentences."""
    changes = []
    for number, text in enumerate(texts):
        for index, before in enumerate(text.starts):
            rest = text.sentences[:index] + text.sentences[index + 1 :]
            place = Place(number, index, len(text.sentences), before)
            changes.append(Change(place, join_sentences(rest), "drop"))
    return changes


def swaps_of(texts: Sequence[Text], *, knows: Callable[[str], bool] = lambda word: True) -> list[Change]:
    """Every caption with one word of each of its sentences swapped; sentences without a word that can be are left out.

    `knows` says which words may be put in: those that every encoder was trained on.
    """
    changes = []
    for number, text in enumerate(texts):
        for index, (sentence, start) in enumerate(zip(text.sentences, text.starts, strict=True)):
            found = _swapped(texts, number, index, knows)
            if found is None:
                continue
            changed, rule = found
            before = start + len(sentence[: _first_difference(sentence, changed)].split(" ")) - 1
            whole = join_sentences((*text.sentences[:index], changed, *text.sentences[index + 1 :]))
            changes.append(Change(Place(number, index, len(text.sentences), before), whole, rule))
    return changes


def things_of(texts: Sequence[Text], *, seed: int) -> list[Change]:
    """Every caption with another thing in the place of the one that a sentence names first, where it names any."""
    changes = []
    for number, text in enumerate(texts):
        rng = random.Random(f"eval/{seed}/sensitivity/{number}")
        skipped = repeated(text.sentences)
        for index, (sentence, before) in enumerate(zip(text.sentences, text.starts, strict=True)):
            things = [] if skipped[index] else read_sentence(sentence)
            if things:
                changed = with_other_thing(sentence, things[0], rng)
                whole = join_sentences((*text.sentences[:index], changed, *text.sentences[index + 1 :]))
                changes.append(Change(Place(number, index, len(text.sentences), before), whole, "thing"))
    return changes


def with_other_thing(sentence: str, thing: Thing, rng: random.Random) -> str:
    """`sentence` with the first mention of `thing`'s colour and of its shape replaced by others, wording unchanged."""
    colour = rng.choice([name for name in COLOURS if name != thing.colour])
    shape = SHAPE_WORDS[rng.choice([name for name in SHAPES if name != thing.shape])][0]
    old_shape = "|".join(SHAPE_WORDS[thing.shape])
    return re.sub(rf"\b{thing.colour} (?:{old_shape})\b", f"{colour} {shape}", sentence, count=1)


def _swapped(texts: Sequence[Text], number: int, index: int, knows: Callable[[str], bool]) -> tuple[str, str] | None:
    sentence = texts[number].sentences[index]
    details = changes_of(sentence, knows=knows)
    if details:
        chosen = int.from_bytes(hashlib.sha256(sentence.encode()).digest()[:4]) % len(details)
        return details[chosen].sentence, "detail"
    word = _longest_word(sentence)
    for step in range(1, len(texts)):
        other = texts[(number + step) % len(texts)]
        found = _longest_word(other.sentences[index]) if index < len(other.sentences) else None
        if word and found and found.group().lower() != word.group().lower() and knows(found.group().lower()):
            replaced = found.group().lower()
            replaced = replaced.capitalize() if word.group()[0].isupper() else replaced
            return sentence[: word.start()] + replaced + sentence[word.end() :], "same place"
    return None


def _longest_word(sentence: str) -> re.Match[str] | None:
    return max(_WORD.finditer(sentence), key=lambda word: len(word.group()), default=None)


def _first_difference(one: str, other: str) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))


def bins_of(places: Sequence[Place]) -> dict[str, Int[np.ndarray, " places"]]:
    """The number of each place's bin, by way."""
    found = np.array([place.bins() for place in places], dtype=np.int64).reshape(-1, len(WAYS))
    return dict(zip(WAYS, found.T, strict=True))
