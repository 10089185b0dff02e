"""Items of a data set to the tensors of a batch: pictures, the caption, and the recipe's short caption."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from debias_sd.captions import first_only, join_sentences, sample_sentences, split_sentences, without_summary
from train_encoder.data import thing_row

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig
    from train_encoder.texts import Texts


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


def normalise(images: list[np.ndarray], mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Pictures, uint8 [h, w, 3] each, as the image tower takes them: float32 [b, 3, h, w]."""
    # Laid out as bytes and computed in place: twice as fast as a chain of new float tensors, bit for bit.
    pixels = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    centre, spread = (torch.tensor(values).view(1, 3, 1, 1) for values in (mean, std))
    return pixels.float().div_(255).sub_(centre).div_(spread)


@dataclass(frozen=True)
class Collator:
    """Makes batches for one config; `texts` makes ids of captions, mean and std are those of the pictures."""

    texts: Texts
    config: TrainConfig
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return pixel_values [b, 3, h, w], or image_features [b, d] that were computed before; input_ids [b, L],
        short_ids [b, S] (with two captions), texts, keys.

        Of records on disk also faults, those that had to be replaced.
        With grounding also cells and named [b, 9, 3] and mentions, int64 [m, 6]: row of the batch, position of the
        last token of the words that name a thing, its cell, and its colour, shape and size from 1.
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
        if self.config.grounding_weight:
            batch["cells"] = torch.from_numpy(np.stack([item["cells"] for item in items]))
            batch["named"] = torch.from_numpy(np.stack([item["named"] for item in items]))
            batch["mentions"] = self._mentions(items)
        return batch

    def _pictures(self, items: list[dict[str, Any]]) -> dict[str, Tensor]:
        if "image_features" in items[0]:
            return {"image_features": torch.from_numpy(np.stack([item["image_features"] for item in items]))}
        return {"pixel_values": normalise([item["image"] for item in items], self.mean, self.std)}

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

    def _mentions(self, items: list[dict[str, Any]]) -> Tensor:
        options = {"truncation": True, "max_length": self.texts.length}
        encoded = self.texts.tokenizer([item["text"] for item in items], **options)
        rows = [
            (row, encoded.char_to_token(row, end - 1), thing.cell, *thing_row(thing))
            for row, item in enumerate(items)
            for end, thing in item["mentions"]
        ]
        return torch.tensor([r for r in rows if r[1] is not None], dtype=torch.long).reshape(-1, 6)
