"""The prompts and negative prompts of one call as rows of token ids, for every text encoder of a pipeline."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from debias_sd.prompts.cuts import ALWAYS, BY_SENTENCE, BY_SENTENCES, LONGALIGN
from debias_sd.prompts.states import Row
from debias_sd.prompts.windows import EACH, LATER, Convert, TokenizedPrompt, Window
from debias_sd.text import count_of
from debias_sd.tokens import check_text

SHORT = 77
Prompt = str | Sequence[str]
Texts = list[list[str]]  # encoder by encoder, the texts that it reads
Windows = list[list[list[Window]]]  # side by side (prompts, negative prompts), text by text
_WHOLE = 2**62  # a window that holds any text


class Reader(NamedTuple):
    """How a text encoder is fed; `positions` is None for T5, whose positions are relative: any text is one window."""

    tokenizer: PreTrainedTokenizerBase
    positions: int | None


@dataclass(frozen=True)
class Rows:
    """What one text encoder reads: `sides` as in `Windows`, with start, end and pads.

    `fill` is the empty window; `weights` are those of all tokens, side by side, None where all are 1; `count` is the
    number of windows of the longest text of the call.

    With a `layout` of `cuts.BY_SENTENCE` the rows of a text are its sentences, without pads, unless it is one window;
    `firsts` are the texts' first windows, side by side.
    """

    sides: list[list[list[Row]]]
    weights: list[Float[Tensor, "batch tokens"] | None]
    fill: Row
    count: int
    layout: str | None = None
    firsts: list[list[Row]] | None = None


def texts_of(given: Sequence[Prompt | None], *, readers: int, size: int | None = None, side: str = "prompt") -> Texts:
    """Return the texts of each encoder: the first of `given` is for all that have none of their own.

    `size` is the number of prompts that these texts belong to; one text is for all of them.
    Raises ValueError for lists of different lengths, values that are not texts, and texts for a missing encoder.
    """
    for number, text in enumerate(given[readers:], readers + 1):
        if text:
            raise ValueError(
                f"{side}_{number} is for text encoder {number} and this pipeline has {readers}; leave it out."
            )
    texts = []
    for text in given[:readers]:
        if text is None or isinstance(text, str | list | tuple):
            text = text or given[0]  # as diffusers reads an empty second prompt
        if not isinstance(text, str | list | tuple):
            raise ValueError(f"a {side} is of type {type(text).__name__} but must be str or a list of str.")
        found = [text] * (size or 1) if isinstance(text, str) else list(text)
        if not found and size is None:
            raise ValueError("0 prompts are given; give one or more.")
        size = len(found) if size is None else size
        if len(found) != size:
            own = count_of(size, "prompt")
            other = (
                f"{count_of(len(found), 'text')} for {'another text encoder' if side == 'prompt' else 'its negative'}"
            )
            raise ValueError(f"{own} and {other} are given; give one for each.")
        for one in found:
            if not isinstance(one, str):
                raise ValueError(f"a {side} is of type {type(one).__name__} but must be str.")
            check_text(one)
        texts.append(found)
    return texts


class PromptBatch:
    """All texts of a call, each different one tokenized once for the encoders that read it.

    CLIP encoders that read the same texts are cut at the same places; T5 reads by itself.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        sides: Sequence[Texts],
        *,
        weighting: str | None = None,
        convert: Convert | None = None,
    ) -> None:
        """For `weighting` and `convert` see `split_prompt`."""
        self._readers, self._sides = readers, sides
        self._clips = [index for index, reader in enumerate(readers) if reader.positions is not None]
        together = all(side[index] == side[self._clips[0]] for side in sides for index in self._clips)
        alone = [[index] for index in range(len(readers)) if not together or index not in self._clips]
        self._prompts: list[tuple[list[int], dict[str, TokenizedPrompt]]] = []
        for group in [self._clips, *alone] if together else alone:
            tokenizers = [readers[index].tokenizer for index in group]
            texts = dict.fromkeys(text for side in sides for text in side[group[0]])
            options = {"weighting": weighting, "convert": convert}
            spell = _spelled_out if group[0] not in self._clips else lambda text, _: text
            read = {text: TokenizedPrompt.read(tokenizers, spell(text, tokenizers[0]), **options) for text in texts}
            self._prompts.append((group, read))

    @property
    def tags(self) -> tuple[str, ...]:
        """The `<lora:name:1>` tags that weighting has left out of the texts, each once."""
        return tuple(dict.fromkeys(tag for _, texts in self._prompts for text in texts.values() for tag in text.tags))

    def rows(self, *, window: int | str | None = None, shortest: int = 1) -> list[Rows]:
        """Return the rows of every encoder.

        Args:
            window: None is all that the CLIP encoders read; "auto" 77 if every text fits in it, else all; a number; or
                one of `cuts.BY_SENTENCE`.
            shortest: tokens that T5's rows have at least; they are as long as the longest text needs.

        Raises ValueError for a window that an encoder does not have.
        """
        layout = window if window in BY_SENTENCE else None
        length = self._window_length(None if layout else window)
        windows = self._split(length)
        sentences = self._split(length, layout) if layout else windows
        clips = [text for index in self._clips for side in sentences[index] for text in side]
        if layout != ALWAYS and all(len(text) == 1 for text in clips):
            layout = None  # every text is one window
        count = max(_windows_filled(text, layout, length) if layout else len(text) for text in clips)
        found = []
        for index, reader in enumerate(self._readers):
            if reader.positions is None:
                found.append(_rows(reader.tokenizer, windows[index], length=shortest, count=1))
                continue
            rows = _rows(reader.tokenizer, windows[index], length=length, count=count)
            found.append(_sentence_rows(rows, sentences[index], layout) if layout else rows)
        return found

    def _window_length(self, window: int | str | None) -> int:
        clips = [self._readers[index] for index in self._clips]
        positions = min(reader.positions for reader in clips)
        longest = min(positions, *(reader.tokenizer.model_max_length for reader in clips))
        if window == "auto":
            found = [text for group, texts in self._prompts if group[0] in self._clips for text in texts.values()]
            return SHORT if longest > SHORT and all(text.fits(SHORT) for text in found) else longest
        window = longest if window is None else window
        if type(window) is not int or not 3 <= window <= positions:
            raise ValueError(
                f"window is {window!r}, this text encoder reads 3 to {positions} tokens; use {SHORT}, {positions}, "
                "'auto' or 'sentence'."
            )
        return window

    def _split(self, length: int, layout: str | None = None) -> dict[int, Windows]:
        """Return the windows of every encoder, with a `layout` those of sentences."""
        windows = {}
        for group, texts in self._prompts:
            is_whole = group[0] not in self._clips
            split = {}
            for text, prompt in texts.items():
                by_sentence = None
                if layout is not None and not is_whole and (layout == ALWAYS or not prompt.is_one(length)):
                    by_sentence = LATER if layout == BY_SENTENCES else EACH
                split[text] = prompt.split(_WHOLE if is_whole else length, by_sentence=by_sentence)
            for place, index in enumerate(group):
                found = {text: [one[place] for one in cut] for text, cut in split.items()}
                if is_whole:  # a BREAK only begins a window
                    found = {text: [_joined(parts)] for text, parts in found.items()}
                windows[index] = [[found[text] for text in side[index]] for side in self._sides]
        return windows


def _spelled_out(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the text with a space in each special token typed in it: T5's pieces hold "</s>" even when asked to split.

    >>> from types import SimpleNamespace
    >>> _spelled_out("a </s> cat", SimpleNamespace(all_special_tokens=["</s>", "<pad>"]))
    'a < /s> cat'
    """
    for token in tokenizer.all_special_tokens:
        text = text.replace(token, f"{token[0]} {token[1:]}")
    return text


def _joined(parts: Sequence[Window]) -> Window:
    ids = tuple(one for part in parts for one in part.ids)
    weights = tuple(one for part in parts for one in part.weights)
    return Window(ids, weights, "".join(part.text for part in parts))


def _rows(tokenizer: PreTrainedTokenizerBase, windows: Windows, *, length: int, count: int) -> Rows:
    """Return rows of `length` tokens, or more where a window has more."""
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    ends = len(start) + 1
    length = max(length, ends + max(len(one.ids) for side in windows for text in side for one in text))

    def row(ids: Sequence[int]) -> Row:
        return (*start, *ids, tokenizer.eos_token_id, *[tokenizer.pad_token_id] * (length - ends - len(ids)))

    def weights(side: list[list[Window]]) -> Float[Tensor, "batch tokens"] | None:
        if all(weight == 1 for text in side for one in text for weight in one.weights):
            return None
        table = torch.ones(len(side), count, length)
        for text, target in zip(side, table, strict=True):
            for one, place in zip(text, target, strict=False):
                place[len(start) : len(start) + len(one.ids)] = torch.tensor(one.weights)
        return table.reshape(len(side), -1)

    return Rows(
        sides=[[[row(one.ids) for one in text] for text in side] for side in windows],
        weights=[weights(side) for side in windows],
        fill=row(()),
        count=count,
    )


def _windows_filled(text: list[Window], layout: str, length: int) -> int:
    """Return the windows that the tokens of a text fill, with its start tokens and one end token."""
    starts = len(text) if layout == LONGALIGN else 1
    return -(-(starts + sum(len(one.ids) for one in text) + 1) // length)


def _sentence_rows(rows: Rows, sentences: Windows, layout: str) -> Rows:
    """Return the rows of windows as those of sentences."""
    start, end = rows.fill[:2]

    def own(text: list[Window], first: Row) -> list[Row]:
        is_whole = len(text) == 1 and layout != ALWAYS
        return [first] if is_whole else [(start, *one.ids, end) for one in text]

    def weights(side: list[list[Window]]) -> Float[Tensor, "batch tokens"] | None:
        if all(weight == 1 for text in side for one in text for weight in one.weights):
            return None
        table = torch.ones(len(side), rows.count * len(rows.fill))
        for text, target in zip(side, table, strict=True):
            place = 1
            for one in text:
                target[place : place + len(one.ids)] = torch.tensor(one.weights)
                place += len(one.ids) + (layout == LONGALIGN)
        return table

    firsts = [[text[0] for text in side] for side in rows.sides]
    sides = [
        [own(text, first) for text, first in zip(*side, strict=True)] for side in zip(sentences, firsts, strict=True)
    ]
    return dataclasses.replace(
        rows, sides=sides, weights=[weights(side) for side in sentences], layout=layout, firsts=firsts
    )
