"""What text encoders read of a prompt: tokens, windows, what is lost where it is cut, words token by token.

`count_tokens` needs no weights: a tokenizer is enough. A text encoder brings its list of known words, a pipeline all
of its encoders. Markup is not counted where `weighting` says that it is read.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

from transformers import PreTrainedTokenizerBase

from debias_sd.encoder import TextEncoder
from debias_sd.pipelines.families import family_of_pipeline
from debias_sd.prompts.windows import Convert, TokenizedPrompt
from debias_sd.tokens import CONTEXTS, check_text, unknown_words

# What pipelines let T5 read: Stable Diffusion 3 by default, FLUX by default and at most.
T5_LENGTHS = (256, 512)
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class WindowText:
    """The text of one window and its tokens, start and end token not counted."""

    tokens: int
    text: str


@dataclass(frozen=True)
class Reading:
    """What an encoder of `length` positions reads of a prompt.

    `kept + lost` is the prompt: what a pipeline reads that cuts it, as stock ones do. `windows` is the whole prompt as
    `encode_prompt` reads it, none for T5, which has no windows.
    """

    length: int
    kept: str
    lost: str
    kept_tokens: int
    lost_tokens: int
    windows: tuple[WindowText, ...]


@dataclass(frozen=True)
class Word:
    """What stands between two white spaces, the parts of it that are tokens, and the weight of its first token.

    A part is empty where a character or a learnt token has several tokens: its text is in the first.
    """

    text: str
    parts: tuple[str, ...]
    weight: float


@dataclass(frozen=True)
class TokenReport:
    """Tokens of a prompt, start and end token not counted, and what each length reads of it.

    `tags` are `<lora:name:1>` tags, which are left out where markup is read.
    """

    tokens: int
    readings: dict[int, Reading]
    unknown_words: tuple[str, ...]
    words: tuple[Word, ...]
    tags: tuple[str, ...]


@overload
def count_tokens(
    source: PreTrainedTokenizerBase | TextEncoder,
    prompt: str,
    *,
    lengths: Sequence[int] = ...,
    known_words: Collection[str] | None = ...,
    weighting: str | None = ...,
) -> TokenReport: ...
@overload
def count_tokens(
    source: object,  # a pipeline: type checkers see diffusers' as a placeholder without parts
    prompt: str,
    *,
    lengths: Sequence[int] = ...,
    known_words: Collection[str] | None = ...,
    weighting: str | None = ...,
) -> dict[str, TokenReport]: ...
def count_tokens(
    source: PreTrainedTokenizerBase | TextEncoder | object,
    prompt: str,
    *,
    lengths: Sequence[int] = CONTEXTS,
    known_words: Collection[str] | None = None,
    weighting: str | None = None,
) -> TokenReport | dict[str, TokenReport]:
    """Return how many tokens `prompt` has, its windows, and which part of it is cut at each of `lengths` positions.

    Args:
        source: a tokenizer or a `TextEncoder`; a pipeline gives one report for each of its text encoders, by name.
        lengths: positions, start and end token counted; T5 encoders have their own.
        known_words: lower case, the only words that the encoder was trained on; None takes those of a `TextEncoder`.
        weighting: "a1111" reads weights and BREAK, which then cost no tokens; None counts them as text.

    A word that is cut in the middle is reported as the tokens cut it; a character whose bytes are cut apart counts as
    lost. Raises ValueError for a length without room and a pipeline of another family.
    """
    settings = {"lengths": lengths, "known_words": known_words, "weighting": weighting}
    if isinstance(source, PreTrainedTokenizerBase):
        return count_slot(source, prompt, **settings)
    if isinstance(source, TextEncoder):
        settings["known_words"] = source.known_words if known_words is None else known_words
        return count_slot(source.tokenizer, prompt, **settings)
    slots = family_of_pipeline(source).slots
    convert = getattr(source, "maybe_convert_prompt", None)
    return {
        slot.encoder: count_slot(source.components[slot.tokenizer], prompt, **settings, kind=slot.kind, convert=convert)
        for slot in slots
    }


def count_slot(
    tokenizer: PreTrainedTokenizerBase,
    prompt: str,
    *,
    lengths: Sequence[int],
    known_words: Collection[str] | None = None,
    weighting: str | None = None,
    kind: str = "clip",
    convert: Convert | None = None,
) -> TokenReport:
    """Return the report of one text encoder of a kind, "clip" or "t5"; see `count_tokens` and `split_prompt`."""
    for length in lengths:
        if type(length) is not int or length < 3:
            raise ValueError(
                f"length is {length!r}, it must be a whole number from 3 (start, end and one token); use 77 or 248."
            )
    if not isinstance(prompt, str):
        raise ValueError(f"the prompt is of type {type(prompt).__name__}, expected is text; give a str.")
    check_text(prompt)
    read = TokenizedPrompt.read([tokenizer], prompt, weighting=weighting, convert=convert)
    text = " ".join(part.text for part in read.parts)
    starts, weights = _joined(read)
    specials = tokenizer.num_special_tokens_to_add()
    readings = {}
    for length in T5_LENGTHS if kind == "t5" else lengths:
        kept = min(len(starts), length - specials)
        cut = starts[kept] if kept < len(starts) else len(text)
        windows = () if kind == "t5" else tuple(WindowText(len(one.ids), one.text) for (one,) in read.split(length))
        readings[length] = Reading(length, text[:cut], text[cut:], kept, len(starts) - kept, windows)
    unknown = unknown_words(text, known_words)
    return TokenReport(len(starts), readings, unknown, tuple(_words(text, starts, weights)), read.tags)


def _joined(read: TokenizedPrompt) -> tuple[list[int], list[float]]:
    """Return where the tokens of all parts start in the parts' texts, joined by one space, and their weights."""
    starts, weights, before = [], [], 0
    for part in read.parts:
        (tokens,) = part.tokens
        starts += [before + start for start in tokens.starts]
        weights += tokens.weights
        before += len(part.text) + 1
    return starts, weights


def _words(text: str, starts: list[int], weights: list[float]) -> Iterator[Word]:
    """Yield the words of `text`; tokens start at the characters `starts`, rising."""
    index = 0
    for match in _WORD.finditer(text):
        first = index
        while index < len(starts) and starts[index] < match.end():
            index += 1
        own = [max(start, match.start()) for start in starts[first:index]]
        ends = dict(pairwise([*dict.fromkeys(own), match.end()]))
        parts = tuple(text[start : ends.pop(start, start)] for start in own)  # popped: the text is in the first
        yield Word(match.group(), parts, weights[first] if first < index else 1.0)
