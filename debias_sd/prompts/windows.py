"""A prompt of any length as windows that text encoders can read, cut where a reader would cut.

Each window holds up to `window - 2` tokens between a start and an end token: 75 of 77, 246 of 248. The windows' tokens,
joined, are exactly the tokens of the prompt. A window ends at the last sentence end that fits, else at the last clause
end (comma, colon, dash, bracket), else at the last word end. A word is cut only where it alone is longer than a window:
between characters; and a character, or the vectors of one textual inversion, only where they alone are longer.

Reading by sentences, the first window stays what it is, as far as whole sentences fit in it, and each sentence after it
is one of its own: what a prompt of one window is read as does not change when something is added to it.

Several tokenizers get the same text in each window, cut where the tokens of all fit. Time is linear in the length.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise, zip_longest

from transformers import PreTrainedTokenizerBase

from debias_sd.prompts.cuts import SENTENCE, cut_ranks
from debias_sd.prompts.learnt import LearntTokens
from debias_sd.prompts.markup import Piece, read_markup

EACH, LATER = "each", "later"
Convert = Callable[[str, PreTrainedTokenizerBase], str]

_INK = re.compile(r"\S")


@dataclass(frozen=True)
class Window:
    """What one tokenizer makes of one window, without start token, end token and pads.

    `weights` has one number a token, 1.0 without markup; `text` is the text without markup, the same for every
    tokenizer.
    """

    ids: tuple[int, ...]
    weights: tuple[float, ...]
    text: str


def split_prompt(
    tokenizers: Sequence[PreTrainedTokenizerBase],
    prompt: str,
    *,
    window: int,
    weighting: str | None = None,
    convert: Convert | None = None,
) -> list[tuple[Window, ...]]:
    """Return the prompt's windows, each with one `Window` a tokenizer; an empty prompt is one empty window.

    Args:
        window: positions of a window, start and end token counted.
        weighting: "a1111" reads weights and BREAK, see `markup`; None reads the prompt as it stands.
        convert: diffusers' `maybe_convert_prompt` of a pipeline that has it: there a learnt token stands for all of its
            vectors. It is not called, see `learnt`; None reads the first one, as pipelines without it do.

    Start and end tokens typed in the prompt are spelled out. Raises ValueError when `window` has no room for a token.
    """
    return TokenizedPrompt.read(tokenizers, prompt, weighting=weighting, convert=convert).split(window)


@dataclass(frozen=True)
class Tokens:
    """All tokens that one tokenizer makes of a text, the character of the text that each starts at, rising, weights."""

    ids: list[int]
    starts: list[int]
    weights: list[float]


@dataclass(frozen=True)
class Part:
    """The text between two BREAKs, without markup, and its tokens under every tokenizer."""

    text: str
    tokens: tuple[Tokens, ...]


@dataclass(frozen=True)
class TokenizedPrompt:
    """A prompt with the tokens of every tokenizer: made once, then measured against windows and split."""

    parts: tuple[Part, ...]
    tags: tuple[str, ...]  # `<lora:name:1>`, left out of the text

    @classmethod
    def read(
        cls,
        tokenizers: Sequence[PreTrainedTokenizerBase],
        prompt: str,
        *,
        weighting: str | None = None,
        convert: Convert | None = None,
    ) -> "TokenizedPrompt":
        """Read the markup and tokenize; see `split_prompt`."""
        markup = read_markup(prompt, weighting=weighting)
        parts = (
            Part(text, tuple(_tokens(tokenizer, text, pieces, convert=convert) for tokenizer in tokenizers))
            for text, pieces in zip(markup.texts, markup.parts, strict=True)
        )
        return cls(tuple(parts), markup.tags)

    def fits(self, window: int) -> bool:
        """Say whether every part between BREAKs is one window of this length."""
        return all(len(tokens.ids) <= window - 2 for part in self.parts for tokens in part.tokens)

    def is_one(self, window: int) -> bool:
        """Say whether the prompt is one window of this length."""
        return len(self.parts) == 1 and self.fits(window)

    def split(self, window: int, *, by_sentence: str | None = None) -> list[tuple[Window, ...]]:
        """Return the windows; see `split_prompt`. `by_sentence`: "each" ends where a sentence does, if not before,
        "later": each but the first one.
        """
        if window < 3:
            raise ValueError(f"window is {window}, start, end and one token need 3; use 77 or 248.")
        return [found for part in self.parts for found in _split_part(part, room=window - 2, by_sentence=by_sentence)]


def _tokens(
    tokenizer: PreTrainedTokenizerBase, text: str, pieces: tuple[Piece, ...], *, convert: Convert | None
) -> Tokens:
    """Return the tokens of a text, made of the whole of it: weights change no id.

    All vectors of a learnt token start at its first character, all tokens of one character at that. A token that
    reaches over a border of weights, as ".," of "(cat.), dog" does, has the weight of its first character.
    """
    learnt = LearntTokens(tokenizer)
    if learnt.names:
        ids, starts = _read_around(learnt, text, whole=convert is not None)
    else:
        # verbose=False: the tokenizer's warning about long texts is about what this module does.
        encoded = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True, verbose=False
        )
        ids, starts = encoded["input_ids"], [start for start, _ in encoded["offset_mapping"]]
    starts = list(accumulate(starts, max))
    if len(pieces) <= 1:
        return Tokens(ids, starts, [pieces[0].weight if pieces else 1.0] * len(ids))
    bounds = list(accumulate((len(piece.text) for piece in pieces[:-1]), initial=0))
    return Tokens(ids, starts, [pieces[bisect_right(bounds, start) - 1].weight for start in starts])


def _read_around(learnt: LearntTokens, text: str, *, whole: bool) -> tuple[list[int], list[int]]:
    """Return the ids of a text and the characters that they start at: learnt tokens, and what stands between them."""
    found = list(learnt.find(text, whole=whole))
    borders = [0, *(border for one in found for border in (one.start, one.end)), len(text)]
    between = [text[start:end] for start, end in zip(borders[::2], borders[1::2], strict=True)]
    ids: list[int] = []
    starts: list[int] = []
    for start, read, one in zip_longest(
        borders[::2], learnt.plain().encode_batch(between, add_special_tokens=False), found
    ):
        ids += read.ids
        starts += [start + place for place, _ in read.offsets]
        if one is not None:
            ids += one.ids
            starts += [one.start] * len(one.ids)
    return ids, starts


def _split_part(part: Part, *, room: int, by_sentence: str | None) -> list[tuple[Window, ...]]:
    """Return the windows of up to `room` tokens; for `by_sentence` see `TokenizedPrompt.split`."""
    sizes = [len(tokens.ids) for tokens in part.tokens]
    if not any(sizes) or (by_sentence != EACH and max(sizes) <= room):
        return [_window(part, [(0, size) for size in sizes], part.text)]
    places, counts = _common_places(part)
    ranks = [*cut_ranks(part.text, places[:-1]), 0]
    inner = [index for index, rank in enumerate(ranks) if by_sentence and rank == SENTENCE and index > 0]
    if by_sentence == LATER:  # of those inside the first window the last one that it can end at
        fitting = [index for index in inner if max(counts[index]) <= room]
        inner = inner[max(len(fitting) - 1, 0) :]
    windows, reach = [], 0
    for start, last in pairwise([0, *inner, len(places) - 1]):
        while start < last:
            while reach < last and all(
                after - before <= room for before, after in zip(counts[start], counts[reach + 1], strict=True)
            ):
                reach += 1
            if reach == start:  # one character, or one textual inversion, alone is longer than a window
                text = part.text[places[start] : places[start + 1]]
                windows += _cut_tokens(part, counts[start], counts[start + 1], room=room, text=text)
                start = reach = start + 1
                continue
            # The last one of the best rank; all that is left where it fits.
            cut = last if reach == last else max(range(reach, start, -1), key=ranks.__getitem__)
            spans = list(zip(counts[start], counts[cut], strict=True))
            windows.append(_window(part, spans, part.text[places[start] : places[cut]]))
            start = cut
    return windows


def _common_places(part: Part) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the characters at which a token starts under every tokenizer, and how many tokens of each are before.

    The first one is where the text begins, the last one its end. White space in front of a token is not its start.
    """
    firsts: list[dict[int, int]] = []
    for tokens in part.tokens:
        first: dict[int, int] = {}
        for index, start in enumerate(tokens.starts):
            ink = _INK.search(part.text, start) if part.text[start].isspace() else None
            first.setdefault(ink.start() if ink else start, index)
        firsts.append(first)
    common = sorted(set.intersection(*(set(first) for first in firsts)))
    found = [(place, tuple(first[place] for first in firsts)) for place in common]
    inner = [(place, counts) for place, counts in found if any(counts)]
    ends = tuple(len(tokens.ids) for tokens in part.tokens)
    return (
        [0, *(place for place, _ in inner), len(part.text)],
        [(0,) * len(ends), *(counts for _, counts in inner), ends],
    )


def _cut_tokens(
    part: Part, start: tuple[int, ...], end: tuple[int, ...], *, room: int, text: str
) -> list[tuple[Window, ...]]:
    """Return windows for tokens that cannot be cut at a character; the text is said to be in the first."""
    windows = []
    while start != end:
        stop = tuple(min(before + room, after) for before, after in zip(start, end, strict=True))
        windows.append(_window(part, list(zip(start, stop, strict=True)), "" if windows else text))
        start = stop
    return windows


def _window(part: Part, spans: list[tuple[int, int]], text: str) -> tuple[Window, ...]:
    """Return the window of the tokens from `spans`, one span a tokenizer."""
    return tuple(
        Window(tuple(tokens.ids[start:end]), tuple(tokens.weights[start:end]), text)
        for tokens, (start, end) in zip(part.tokens, spans, strict=True)
    )
