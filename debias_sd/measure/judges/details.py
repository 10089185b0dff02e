"""A sentence with one detail changed: another colour, number, size, place, material or thing.

The words are in detail_words.json, a kind a line: meanings parted by spaces, synonyms by commas (the first one stands
for the meaning); things have a plural, an irregular one behind a slash. A change replaces one word by the same form of
another meaning of its kind. Which ones depends on the sentence alone; words take turns, so that each is changed before
one is twice.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

CHANGES = 8
_PATH = Path(__file__).parent / "detail_words.json"
_ARTICLE = re.compile(r"\b(a|an)\s+$", re.IGNORECASE)
# "left" and "right" are places behind one of these or before one of those, and verbs and adverbs elsewhere.
_BEFORE_SIDE = re.compile(
    r"\b(the|far|to|on|its|his|her|their|top|upper|bottom|lower|middle|center|centre)\s+(very\s+)?$"
)
_BEHIND_SIDE = re.compile(r"\s+(side|corner|hand|half|edge|third|part|foreground|background)\b")


@dataclasses.dataclass(frozen=True)
class Change:
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
) -> list[Change]:
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
        Change(kind, match.group(), others[turn], _replaced(sentence, match, others[turn]))
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
