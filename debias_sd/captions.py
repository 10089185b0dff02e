"""Captions as lists of sentences: the short caption of DeBias-CLIP, and the probes that move or drop sentences.

Source: DeBias-CLIP (arXiv 2602.22419), sections on sentence-level augmentation and robustness. The paper names no
sentence splitter and no join string: here it is `split_sentences`, and sentences are joined by one space.
"""

import random
import re
from collections.abc import Callable, Iterator, Sequence

# A stop with the quotes and brackets that close behind it. Western stops count only before white space (so "3.5" and
# "a.jpg" are whole); full-width stops need none. A line break counts by itself.
_STOP = re.compile(
    r"""(?P<full>[。！？｡]+[」』”’）》】"']*)\s*"""
    r"""|(?<![.!?…])(?P<stop>[.!?…]+)(?P<closing>["'”’»)\]}*]*)(?:\s+|$)"""
    r"""|(?P<line>\n\s*)"""
)
_MARK = re.compile("[。！？｡.!?…\n]")  # what every match of _STOP starts with: found ten times faster
_ACRONYM = re.compile(r"(?:[^\W\d_]\.)+[^\W\d_]")  # "U.S", "J.R.R"
_FIRST_WORD = re.compile(r"\W*([\w'’]*)")
_WORD = re.compile(r"[^\s\"'“”‘’«»()\[\]{}]+$")

# Always followed by the rest of their sentence.
_TITLES = frozenset("dr mr mrs ms mx prof rev gen col capt lt sgt hon gov sen messrs mme vs e.g i.e cf approx".split())
# Followed by a number where they are abbreviations at all ("no. 5", "fig. 2").
_BEFORE_NUMBERS = frozenset("no nos fig figs vol p pp ch ca jan feb apr aug sept oct nov dec".split())
# May end a sentence: they do before an upper-case letter, and not before a lower-case one.
_MAY_END = frozenset("etc inc ltd co corp jr sr a.m p.m dept est".split())
# The same, but abbreviations only behind a number ("12 in. wide").
_UNITS = frozenset("in ft yd mi mm cm m km oz lb lbs kg g sq sec min hr hrs".split())
# Names follow these ("St. Mary", "Mt. Fuji") unless a word that opens sentences does ("on Main St. The shop").
_BEFORE_NAMES = frozenset("st mt ft ave blvd rd".split())
_OPENERS = frozenset(
    "the a an this that these those there it its he his she her they their we our you your in on at to above below "
    "behind beside near next under over by with from for as and but or one two three several some many all both "
    "another other each every overall while when where".split()
)


def _ends_sentence(before: str, stop: str, closing: str, after: str) -> bool:
    """Say whether `stop` ends the sentence `before`, where `after` is the text behind it, both without white space."""
    if not after:
        return True
    follows_lower = after[0].islower()
    if closing and follows_lower:  # "Stop!" she says.
        return False
    if stop != ".":
        return not (follows_lower and stop[0] in ".…")  # an ellipsis in the middle of a sentence
    found = _WORD.search(before)
    word = found.group() if found else ""
    if not word:
        return True
    head = before[: len(before) - len(word)].rstrip(" (\"'“‘«[")
    if word.isdigit() and not head:  # "1. A cat" of a numbered list
        return False
    following = _FIRST_WORD.match(after).group(1)
    return not _is_abbreviation(word, head=head, following=following)


def _is_abbreviation(word: str, *, head: str, following: str) -> bool:
    """Say whether the period behind `word` belongs to it, given the text before and the word behind."""
    lower = word.lower()
    opens = following.lower() in _OPENERS and following[:1].isupper()
    if lower in _TITLES:
        return True
    if lower in _BEFORE_NUMBERS and following[:1].isdigit():
        return True
    if lower in _MAY_END or (lower in _UNITS and head[-1:].isdigit()):
        return following[:1].islower() or following[:1].isdigit()
    if lower in _BEFORE_NAMES and word[0].isupper():
        return not opens
    initial = len(word) == 1 and word.isupper() and word != "I"  # "A. Smith", not "than I. Then"
    acronym = "." in word and _ACRONYM.fullmatch(word) is not None
    return (initial or acronym) and not opens


def _stops(text: str) -> Iterator[re.Match[str]]:
    """The matches of `_STOP`, as its `finditer` gives them."""
    mark = _MARK.search(text)
    while mark is not None:
        found = _STOP.match(text, mark.start())
        if found is not None:
            yield found
        mark = _MARK.search(text, mark.end() if found is None else found.end())


def split_sentences(text: str) -> list[str]:
    """Return the sentences of `text`, white space inside them folded to single spaces; nothing else is changed.

    >>> split_sentences("Dr. A. Smith, 3.5 m tall, waves. Rain falls!")
    ['Dr. A. Smith, 3.5 m tall, waves.', 'Rain falls!']
    >>> split_sentences('"Stop!" says the sign. A man (tall) waits... Why?')
    ['"Stop!" says the sign.', 'A man (tall) waits...', 'Why?']
    >>> split_sentences(" ")
    []
    """
    sentences: list[str] = []
    start = 0
    for match in _stops(text):
        # A look of 80 characters each way decides; more would make long texts quadratic.
        before = text[max(start, match.start() - 80) : match.start()].strip()
        after = text[match.end() : match.end() + 80]
        if match["full"] is not None:
            ends = True
        elif "\n" in match.group() and not after[:1].islower():
            ends = True  # a line that goes on in lower case was only wrapped
        elif match["line"] is not None:
            ends = False
        else:
            ends = _ends_sentence(before, match["stop"], match["closing"], after)
        if ends:
            sentences.append(" ".join(text[start : match.end()].split()))
            start = match.end()
    sentences.append(" ".join(text[start:].split()))
    return [sentence for sentence in sentences if sentence]


def join_sentences(sentences: Sequence[str]) -> str:
    """Return `sentences` as one text, one space between them."""
    return " ".join(sentences)


def without_summary(sentences: Sequence[str]) -> list[str]:
    """Return all sentences but the first; a single sentence stays."""
    return list(sentences[1:] or sentences)


def sample_sentences(sentences: Sequence[str], rng: random.Random) -> list[str]:
    """Return n of the sentences in random order, n uniform in 1 to all of them, each at most once."""
    if not sentences:
        return []
    return rng.sample(list(sentences), rng.randint(1, len(sentences)))


def remove_summary(text: str) -> str:
    """Return `text` without its first sentence (method step 1); a one-sentence caption keeps its sentence.

    >>> remove_summary("A park. A dog runs. A kite flies.")
    'A dog runs. A kite flies.'
    """
    return join_sentences(without_summary(split_sentences(text)))


def subsample_caption(text: str, rng: random.Random) -> str:
    """Return the short caption of DeBias-CLIP: summary removed, then n sentences drawn and shuffled (steps 1 and 2)."""
    return join_sentences(sample_sentences(without_summary(split_sentences(text)), rng))


def keep_caption(text: str) -> str:
    """Return `text` as it is: the probe that changes nothing."""
    return text


def move_summary(text: str) -> str:
    """Return `text` with sentences 1 and 4 swapped, or 1 and the last where there are fewer than 4.

    The paper leaves captions of fewer than 4 sentences open.
    """
    sentences = split_sentences(text)
    if sentences:
        other = min(3, len(sentences) - 1)
        sentences[0], sentences[other] = sentences[other], sentences[0]
    return join_sentences(sentences)


def first_two(text: str) -> str:
    """Return the first two sentences of `text`."""
    return join_sentences(split_sentences(text)[:2])


def swap_two(text: str) -> str:
    """Return the first two sentences of `text`, the second one first."""
    return join_sentences(split_sentences(text)[:2][::-1])


def first_only(text: str) -> str:
    """Return the first sentence of `text`: its summary, and Long-CLIP's short caption."""
    return join_sentences(split_sentences(text)[:1])


PROBES: dict[str, Callable[[str], str]] = {
    "keep": keep_caption,
    "move": move_summary,
    "remove": remove_summary,
    "first2": first_two,
    "swap2": swap_two,
    "first_only": first_only,
}
