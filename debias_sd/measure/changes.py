"""Texts with one thing changed: a detail of a sentence, one sentence dropped, one word or thing swapped.

A detail is a colour, number, size, place, material or thing. The words are in detail_words.json, one kind per line:
meanings parted by spaces, synonyms by commas (the first one stands for the meaning); things have a plural, an irregular
one after a slash. A change replaces one word by the same form of another meaning of its kind. Which ones depends on the
sentence alone; words take turns, so that each is changed before one is twice.

A caption is read with its white space folded, so that its sentences lie one space apart. Rules, all deterministic:

* drop: every sentence of a caption that has at least two, one at a time.
* swap: one word per sentence. Where a word names a detail it is replaced as above; which of these words and which other
  word depends on the sentence alone. Where none does, the longest word of the sentence (the first of these) is replaced
  by the longest word of the sentence at the same place of another caption: the next one, in the order of the set, that
  has another word there.
* thing: in captions of the embedded world, another colour and another shape for the thing that a sentence names first.
  Sentences about what the summary names too are left out: it would still name them.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import random
import re
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path

from debias_sd.measure.places import Place
from debias_sd.sentences import join_sentences, split_sentences
from debias_sd.shapes.caption import SHAPE_WORDS, read_sentence, repeated
from debias_sd.shapes.scene import COLOURS, SHAPES, Thing

CHANGES = 8
_PATH = Path(__file__).parent / "detail_words.json"
_ARTICLE = re.compile(r"\b(a|an)\s+$", re.IGNORECASE)
# "left" and "right" are places after one of these or before one of those, and verbs and adverbs elsewhere.
_BEFORE_SIDE = re.compile(
    r"\b(the|far|to|on|its|his|her|their|top|upper|bottom|lower|middle|center|centre)\s+(very\s+)?$"
)
_BEHIND_SIDE = re.compile(r"\s+(side|corner|hand|half|edge|third|part|foreground|background)\b")
_WORD = re.compile(r"[^\W\d_]+")


@dataclasses.dataclass(frozen=True)
class DetailChange:
    """`sentence` has `other` where the true one has `word`."""

    kind: str
    word: str
    other: str
    sentence: str


@dataclasses.dataclass(frozen=True)
class _Meaning:
    kind: str
    number: int  # of the meaning within its kind
    form: int  # 0: singular, 1: plural


def changes_of(
    sentence: str, *, limit: int = CHANGES, knows: Callable[[str], bool] = lambda word: True
) -> list[DetailChange]:
    """Return up to `limit` changes of `sentence`, none where it has no detail word; `knows` filters the new words.

    >>> [change.sentence for change in changes_of("A small dog.", limit=1)]
    ['A large dog.']
    """
    words, heads = _table()
    found = [match for match in _pattern().finditer(sentence) if _is_detail(sentence, match)]
    turns = []
    for place, match in enumerate(found):
        meaning = words[_key(match.group())]
        others = [
            forms[meaning.form]
            for number, forms in enumerate(heads[meaning.kind])
            if number != meaning.number and knows(forms[meaning.form])
        ]
        start = int.from_bytes(hashlib.sha256(f"{place} {sentence}".encode()).digest()[:4]) % max(1, len(others))
        turns.append((match, meaning.kind, others[start:] + others[:start]))
    changes = [
        DetailChange(kind, match.group(), others[turn], _replaced(sentence, match, others[turn]))
        for turn in range(max((len(others) for _, _, others in turns), default=0))
        for match, kind, others in turns
        if turn < len(others)
    ]
    return changes[:limit]


@functools.cache
def _table() -> tuple[dict[str, _Meaning], dict[str, list[tuple[str, str]]]]:
    """What each form of each word means, and for each kind the (singular, plural) that stands for each meaning."""
    words: dict[str, _Meaning] = {}
    heads: dict[str, list[tuple[str, str]]] = {}
    content = json.loads(_PATH.read_text(encoding="utf-8"))
    for kind, meanings in (content["words"] | content["things"]).items():
        heads[kind] = []
        for number, meaning in enumerate(meanings.split()):
            entries = meaning.replace("_", " ").split(",")
            forms = [_forms(entry, is_thing=kind in content["things"]) for entry in entries]
            heads[kind].append(forms[0])
            for pair in forms:
                for form, word in reversed(list(enumerate(pair))):
                    words.setdefault(word, _Meaning(kind, number, form))
    return words, heads


def _forms(entry: str, *, is_thing: bool) -> tuple[str, str]:
    singular, slash, plural = entry.partition("/")
    if slash:
        return singular, plural
    return singular, singular + "s" if is_thing else singular


@functools.cache
def _pattern() -> re.Pattern[str]:
    words = sorted(_table()[0], key=len, reverse=True)
    return re.compile(rf"\b({'|'.join(re.escape(word) for word in words)})\b".replace(r"\ ", r"\s+"), re.IGNORECASE)


def _key(found: str) -> str:
    return " ".join(found.lower().split())


def _is_detail(sentence: str, match: re.Match[str]) -> bool:
    if _key(match.group()) not in ("left", "right"):
        return True
    before, behind = sentence[: match.start()].lower(), sentence[match.end() :].lower()
    return bool(_BEFORE_SIDE.search(before) or _BEHIND_SIDE.match(behind))


def _replaced(sentence: str, match: re.Match[str], other: str) -> str:
    """`sentence` with `other` in place of the match: its capital kept, the article in front made to fit."""
    before = sentence[: match.start()]
    article = _ARTICLE.search(before)
    if article is not None:
        fitting = "an" if other[0] in "aeiou" else "a"
        fitting = fitting.capitalize() if article.group(1)[0].isupper() else fitting
        before = before[: article.start()] + fitting + before[article.end(1) :]
    other = other[0].upper() + other[1:] if match.group()[0].isupper() else other
    return before + other + sentence[match.end() :]


@dataclasses.dataclass(frozen=True)
class Text:
    """A caption as it is read: its sentences, one space between them."""

    sentences: tuple[str, ...]

    @property
    def whole(self) -> str:
        return join_sentences(self.sentences)

    @property
    def words(self) -> list[int]:
        """Words of each sentence, as white space separates them."""
        return [len(sentence.split()) for sentence in self.sentences]

    @property
    def starts(self) -> list[int]:
        """Words in front of each sentence."""
        return [0, *accumulate(self.words)][:-1]


@dataclasses.dataclass(frozen=True)
class Change:
    """A caption with one change; `rule`: drop, detail, same place or thing."""

    place: Place
    text: str
    rule: str


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
