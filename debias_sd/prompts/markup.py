"""Weights and breaks in a prompt, in the syntax of AUTOMATIC1111's web UI: `(red:1.3) cat BREAK [blue] dog`.

    (text)      1.1 times            [text]     1 / 1.1 times
    (text:1.3)  1.3 times            ((text))   1.1 * 1.1 times: nested brackets multiply
    \\( \\) \\[ \\] \\\\  the sign itself    BREAK      a new window begins (upper case, a word by itself)

Strings only, one pass, time linear in the length. Incomplete markup is text: a bracket without its partner
(`smile :) [`), an empty one, a malformed number (`(c:1.5.5)`, `(c:)`, `(a:1e3)`).

Where the web UI reads otherwise: it takes an open bracket without partner to the end of the prompt, lets `(a [b) c]`
overlap (here the `[` is text), makes an empty window of a second BREAK in a row or one at an end (here they count as
one, or nothing), and loses a BREAK inside brackets (here it counts). Its `[a:b:0.5]`, `[a|b]` and `AND` are not known
here: the words in the brackets count 1 / 1.1 times, and AND is a word.
"""

import re
from dataclasses import dataclass

STEP = 1.1  # of one pair of brackets
LIMIT = 10.0  # a weight beyond it, also by nesting, counts as this: ten times a state is finite in float16
WEIGHTINGS = ("a1111",)

# Every character is in exactly one token, and no token looks further than the next bracket or "<".
_TOKEN = re.compile(r"\\[()\[\]\\]|<(?:lora|lyco|hypernet):[^<>:]+(?::[^<>]*)?>|[()\[\]]|[^\\()\[\]<]+|[\\<]")
_NUMBER = re.compile(r"\s*([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))\s*")
# A try at a number: "1.5.5", "1e3", "1,3", "-", or nothing at all.
_NUMBER_LIKE = re.compile(r"\s*(?:[0-9+.-][0-9.,+\-eE_%]*)?\s*")
_BREAK = re.compile(r"(?<![\w'’-])BREAK(?![\w'’-])")
_OPENS = {")": "(", "]": "["}


@dataclass(frozen=True)
class Piece:
    """Text without markup, and its weight: from -LIMIT to LIMIT, 1.0 where nothing is said."""

    text: str
    weight: float


@dataclass(frozen=True)
class Markup:
    """The parts of a prompt between its BREAKs, each in pieces of one weight, and `<lora:name:1>` tags, left out."""

    parts: tuple[tuple[Piece, ...], ...]
    tags: tuple[str, ...] = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """Each part as one text."""
        return tuple("".join(piece.text for piece in part) for part in self.parts)


def read_markup(prompt: str, *, weighting: str | None) -> Markup:
    """Return the prompt's parts; without `weighting` it is one part of one piece, read as it stands.

    Raises ValueError for a weighting that is not known.
    """
    if weighting is None:
        return Markup(((Piece(prompt, 1.0),),))
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting is {weighting!r} but must be None or 'a1111'.")
    return parse_a1111(prompt)


def parse_a1111(prompt: str) -> Markup:
    """Return the parts of a prompt with markup; there is always at least one part, empty for an empty prompt.

    Letters or digits that only a bracket or a tag keeps apart stay apart: "(red)(cat)" is "red cat".

    >>> parse_a1111("a (red:1.3) cat BREAK (dog").parts
    ((Piece(text='a ', weight=1.0), Piece(text='red', weight=1.3), Piece(text=' cat ', weight=1.0)), \
(Piece(text=' (dog', weight=1.0),))
    """
    tokens = _TOKEN.findall(prompt)
    factors, heads = _matched_brackets(tokens)
    weights, tags = [1.0], []
    writer, text = _Writer(), []
    for index, token in enumerate(tokens):
        is_tag = len(token) > 1 and token[0] == "<"
        if index not in factors and not is_tag:
            text.append(heads.get(index, token[1:] if len(token) > 1 and token[0] == "\\" else token))
            continue
        writer.write("".join(text), weights[-1])
        text.clear()
        if is_tag:
            tags.append(token)
        elif token in _OPENS:
            weights.pop()
        else:
            weights.append(max(-LIMIT, min(LIMIT, weights[-1] * factors[index])))
    writer.write("".join(text), weights[-1])
    return Markup(writer.parts(), tuple(tags))


class _Writer:
    """Gathers text and weights into parts."""

    def __init__(self) -> None:
        self._parts: list[list[tuple[float, list[str]]]] = [[]]

    def write(self, text: str, weight: float) -> None:
        """Add text that a bracket or a tag parts from the text before it."""
        first, *others = _BREAK.split(text)
        self._append(first, weight)
        for other in others:
            self._parts.append([])
            self._append(other, weight)

    def _append(self, text: str, weight: float) -> None:
        if not text:
            return
        part = self._parts[-1]
        if part and part[-1][1][-1][-1].isalnum() and text[0].isalnum():
            text = " " + text
        if part and part[-1][0] == weight:
            part[-1][1].append(text)
        else:
            part.append((weight, [text]))

    def parts(self) -> tuple[tuple[Piece, ...], ...]:
        """Return the parts that hold more than white space; one empty part when there is none."""
        found = [tuple(Piece("".join(texts), weight) for weight, texts in part) for part in self._parts]
        return tuple(part for part in found if any(piece.text.strip() for piece in part)) or ((),)


def _matched_brackets(tokens: list[str]) -> tuple[dict[int, float], dict[int, str]]:
    """Return the factor at every bracket that has a partner, by token, and texts that lose their ":1.3", by token."""
    factors: dict[int, float] = {}
    heads: dict[int, str] = {}
    opened: list[tuple[int, int]] = []  # open brackets: their token, and how many texts came before
    waiting = {"(": 0, "[": 0}
    texts = 0
    for index, token in enumerate(tokens):
        if token in waiting:
            opened.append((index, texts))
            waiting[token] += 1
        elif token not in _OPENS:
            texts += not token.isspace()
        elif waiting[_OPENS[token]]:
            start, before = opened.pop()
            waiting[tokens[start]] -= 1
            while tokens[start] != _OPENS[token]:  # opened inside and not closed: text
                start, before = opened.pop()
                waiting[tokens[start]] -= 1
            factor, head = (1 / STEP, None) if token == "]" else _round_factor(tokens[index - 1])
            is_empty = texts - before == (head is not None and not head.strip())
            if factor is not None and not is_empty:
                factors[start] = factors[index] = factor
                if head is not None:
                    heads[index - 1] = head
    return factors, heads


def _round_factor(last: str) -> tuple[float | None, str | None]:
    """Return the factor of round brackets whose last token is `last`, None if malformed, and `last` without it."""
    head, colon, tail = last.rpartition(":")
    if not colon or last[0] == "<" and len(last) > 1:
        return STEP, None
    number = _NUMBER.fullmatch(tail)
    if number:
        return float(number[1]), head
    return (None if _NUMBER_LIKE.fullmatch(tail) else STEP), None
