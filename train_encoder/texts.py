"""Captions to token ids, as the tower that is trained reads them; pads in front of the short ones.

CLIP reads from left to right up to the end token: nothing behind it matters, and ids are cut at the longest caption of
a batch. SigLIP attends to every slot, pads included, and is pooled at the last one: all captions keep the whole length,
and nothing is cut or packed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from debias_sd.siglip_tokens import pad_rows, siglip_rows
from debias_sd.tokens import end_positions, front_pad, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Texts(Protocol):
    """What a collator and an evaluation ask of a tokenizer; `length` is the number of positions."""

    tokenizer: PreTrainedTokenizerBase
    length: int

    def ids(self, texts: Sequence[str]) -> Tensor:
        """Ids of the whole length, int64 [b, length]; longer texts are cut and keep their end token."""
        ...

    def front_padded(self, texts: Sequence[str], rngs: Sequence[random.Random]) -> Tensor:
        """The same with n_pre of the slots behind the end token moved to the front, uniform in 0 to all of them."""
        ...

    def cut(self, ids: Tensor) -> Tensor:
        """`ids` without the slots at their end that the tower need not read."""
        ...


@dataclass(frozen=True)
class ClipTexts:
    """`[SOT, text, EOT, PAD ...]`; in front padded ones the pads stand behind the start token."""

    tokenizer: PreTrainedTokenizerBase
    length: int
    pad_id: int

    def ids(self, texts: Sequence[str]) -> Tensor:
        return tokenize(self.tokenizer, texts, length=self.length, pad_id=self.pad_id)

    def front_padded(self, texts: Sequence[str], rngs: Sequence[random.Random]) -> Tensor:
        ids, end_id = self.ids(texts), self.tokenizer.eos_token_id
        # `random_front_pads` of each row with its own generator, at a tenth of the time: one look for all end tokens.
        behind = (self.length - 1 - end_positions(ids, end_id=end_id)).tolist()
        pads = torch.tensor([rng.randint(0, n) for n, rng in zip(behind, rngs, strict=True)], dtype=torch.long)
        return front_pad(ids, pads, pad_id=self.pad_id, end_id=end_id)

    def cut(self, ids: Tensor) -> Tensor:
        return ids[:, : int(end_positions(ids, end_id=self.tokenizer.eos_token_id).max()) + 1].contiguous()


@dataclass(frozen=True)
class SiglipTexts:
    """`[text, EOS, PAD ...]`; in front padded ones the pads come first, since there is no start token.

    The paper leaves open how it padded SigLIP's captions in front. Here `[PAD x n_pre, text, EOS, PAD ...]` is the same
    move: the text, with its end token, at positions that only long captions reached. What pools is the state at the
    last position, so a text that is moved there (n_pre = n_post) is pooled at its own end token, any other at a pad.
    The pad is the tokenizer's own, which in SigLIP's is the end token: that ends nothing here, no mask is made of it.
    """

    tokenizer: PreTrainedTokenizerBase
    length: int

    def ids(self, texts: Sequence[str]) -> Tensor:
        rows = siglip_rows(self.tokenizer, texts, length=self.length)
        return pad_rows(rows, length=self.length, pad_id=self.tokenizer.pad_token_id)

    def front_padded(self, texts: Sequence[str], rngs: Sequence[random.Random]) -> Tensor:
        rows = siglip_rows(self.tokenizer, texts, length=self.length)
        fronts = [rng.randint(0, self.length - len(row)) for row, rng in zip(rows, rngs, strict=True)]
        return pad_rows(rows, length=self.length, pad_id=self.tokenizer.pad_token_id, fronts=fronts)

    def cut(self, ids: Tensor) -> Tensor:
        return ids
