"""Items of a data set to the tensors of a batch: pictures, the caption, and the recipe's short caption, as token ids.

CLIP reads from left to right up to the end token: nothing after it matters, and ids are cut at the longest caption of
a batch. SigLIP attends to every slot, pads included, and is pooled at the last one: all captions keep the whole length,
and nothing is cut or packed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from debias_sd.sentences import first_only, join_sentences, sample_sentences, split_sentences, without_summary
from debias_sd.tokens import end_positions, front_pad, pad_rows, siglip_rows, tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from debias_sd.preprocessing import Preprocessing
    from train_encoder.settings import TrainConfig


class Texts(Protocol):
    """What a collator and an evaluation ask of a tokenizer; `length` is the number of positions."""

    tokenizer: PreTrainedTokenizerBase
    length: int

    def ids(self, texts: Sequence[str]) -> Tensor:
        """Ids of the whole length, int64 [b, length]; longer texts are cut and keep their end token."""
        ...

    def front_padded(self, texts: Sequence[str], rngs: Sequence[random.Random]) -> Tensor:
        """The same with n_pre of the slots after the end token moved to the front, uniform in 0 to all of them."""
        ...

    def cut(self, ids: Tensor) -> Tensor:
        """`ids` without the slots at their end that the tower need not read."""
        ...


@dataclass(frozen=True)
class ClipTexts:
    """`[SOT, text, EOT, PAD ...]`; front pads stand after the start token."""

    tokenizer: PreTrainedTokenizerBase
    length: int
    pad_id: int

    def ids(self, texts: Sequence[str]) -> Tensor:
        return tokenize(self.tokenizer, texts, length=self.length, pad_id=self.pad_id)

    def front_padded(self, texts: Sequence[str], rngs: Sequence[random.Random]) -> Tensor:
        ids, end_id = self.ids(texts), self.tokenizer.eos_token_id
        after = (self.length - 1 - end_positions(ids, end_id=end_id)).tolist()
        pads = torch.tensor([rng.randint(0, n) for n, rng in zip(after, rngs, strict=True)], dtype=torch.long)
        return front_pad(ids, pads, pad_id=self.pad_id, end_id=end_id)

    def cut(self, ids: Tensor) -> Tensor:
        return ids[:, : int(end_positions(ids, end_id=self.tokenizer.eos_token_id).max()) + 1].contiguous()


@dataclass(frozen=True)
class SiglipTexts:
    """`[text, EOS, PAD ...]`; front pads come first, since there is no start token.

    The paper leaves open how it padded SigLIP's captions in front. Here `[PAD x n_pre, text, EOS, PAD ...]` is the same
    move: the text, with its end token, at positions that only long captions reached. What pools is the state at the
    last position, so a text that is moved there (n_pre = n_post) is pooled at its own end token, any other at a pad.
    The pad is the tokenizer's own, which in SigLIP's is the end token. That ends nothing here: no mask is made of it.
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


def short_text(text: str, rng: random.Random, *, remove_summary: bool, subsample: bool) -> str:
    """The short caption: the first sentence (Long-CLIP), or what the two switches leave (DeBias-CLIP, both on)."""
    if not remove_summary and not subsample:
        return first_only(text)
    sentences = split_sentences(text)
    if remove_summary:
        sentences = without_summary(sentences)
    if subsample:
        sentences = sample_sentences(sentences, rng)
    return join_sentences(sentences)


@dataclass(frozen=True)
class Collator:
    """Makes batches for one config. `extras` make what terms of the loss need, as `PairTerm.collate`."""

    texts: Texts
    config: TrainConfig
    preprocessing: Preprocessing  # of the pictures
    extras: tuple[Callable[[list[dict[str, Any]], Texts], dict[str, Tensor]], ...] = ()

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return pixel_values [b, 3, h, w], or image_features [b, d] that were computed before; input_ids [b, L],
        short_ids [b, S] (with two captions), texts, keys; of records on disk faults, those that had to be replaced;
        and what `extras` return.
        """
        texts = [item["text"] for item in items]
        batch = {
            **self._pictures(items),
            "input_ids": self.texts.cut(self.texts.ids(texts)),
            "texts": texts,
            "keys": [item.get("key", item["number"]) for item in items],
        }
        if self.config.recipe != "short-only":
            batch["short_ids"] = self._short_ids(items)
        if "faults" in items[0]:
            batch["faults"] = [fault for item in items for fault in item["faults"]]
        for extra in self.extras:
            batch |= extra(items, self.texts)
        return batch

    def _pictures(self, items: list[dict[str, Any]]) -> dict[str, Tensor]:
        if "image_features" in items[0]:
            return {"image_features": torch.from_numpy(np.stack([item["image_features"] for item in items]))}
        return {"pixel_values": self.preprocessing.normalise([item["image"] for item in items])}

    def _short_ids(self, items: list[dict[str, Any]]) -> Tensor:
        # One generator per sample: its short caption does not depend on its neighbours in the batch.
        rngs = [random.Random(f"{self.config.seed}/short/{item['number']}") for item in items]
        switches = {"remove_summary": self.config.remove_summary, "subsample": self.config.subsample}
        own = [item.get("short") if self.config.short_caption_column else None for item in items]
        texts = [
            short or short_text(item["text"], rng, **switches)
            for short, item, rng in zip(own, items, rngs, strict=True)
        ]
        ids = self.texts.front_padded(texts, rngs) if self.config.front_padding else self.texts.ids(texts)
        return self.texts.cut(ids)
