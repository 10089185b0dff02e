"""Where a text may be cut: how good a place each of its characters is to begin a new window. Strings only."""

import re
import unicodedata
from collections.abc import Sequence
from itertools import accumulate

from debias_sd.sentences import split_sentences

BY_SENTENCES, ALWAYS, LONGALIGN = "sentence", "sentence-always", "longalign"
BY_SENTENCE = (BY_SENTENCES, ALWAYS, LONGALIGN)  # in place of a window's length: a window for each sentence

JOINED, INSIDE, WORD_PART, WORD, CLAUSE, SENTENCE = range(6)  # the worst place first

# What ends a clause, with the quotes that close after it. Not inside a number or an address: "3,000", "16:9", "http:".
_CLAUSE_END = re.compile(
    r"""(?:(?<![0-9])[,:]|[,:](?![0-9/])|[;|…，；：、،؛—]|--+|(?<=\s)[-–](?=\s)|[)\]}](?=\s))["'”’»)\]}]*\s*"""
    r"""|(?<=\s)(?=[(\[{])"""
)
_JOINER, _SKIN = "\u200d", "\U0001f3fb\U0001f3ff"
_MARKS = ("Mn", "Me", "Mc", "Cf")


def cut_ranks(text: str, places: Sequence[int]) -> list[int]:
    """Return the rank of a cut before each of the characters `places`, which rise and are not white space.

    SENTENCE, CLAUSE and WORD begin one; WORD_PART follows a sign inside a word ("sci-|fi"); JOINED is inside what looks
    like one character, such as an emoji with its skin tone; INSIDE is any other.
    """
    sentences = _sentence_starts(text)
    clauses = {match.end() for match in _CLAUSE_END.finditer(text)}
    return [_rank(text, place, sentences=sentences, clauses=clauses) for place in places]


def _rank(text: str, place: int, *, sentences: set[int], clauses: set[int]) -> int:
    if place in sentences:
        return SENTENCE
    if place in clauses:
        return CLAUSE
    before, character = text[place - 1 : place], text[place]
    if not before or before.isspace():
        return WORD
    if unicodedata.category(character) in _MARKS or before == _JOINER or _SKIN[0] <= character <= _SKIN[1]:
        return JOINED
    return WORD_PART if character.isalnum() and not before.isalnum() and before not in "'’" else INSIDE


def _sentence_starts(text: str) -> set[int]:
    """Return the characters, none of them white space, that sentences start with.

    `split_sentences` folds white space, so places are found by counting the other characters.
    """
    lengths = (sum(not character.isspace() for character in sentence) for sentence in split_sentences(text))
    counts = set(accumulate(lengths))
    inked = (place for place, character in enumerate(text) if not character.isspace())
    return {place for count, place in enumerate(inked) if count in counts}
