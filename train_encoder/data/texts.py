"""Texts to lengthen an encoder on, and what of them is read: by the encoder in training, and by its initial checkpoint.

Every 64th text is the empty prompt, half of every guided picture, and of every eighth one only the first one to four
sentences are kept: what the pipeline does with prompts that fit in its window is held too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset

from debias_sd.prompts.batch import PromptBatch, Reader
from debias_sd.prompts.cuts import BY_SENTENCES
from debias_sd.prompts.states import Row, whole_row
from debias_sd.sentences import join_sentences, split_sentences
from train_encoder.data.pairs import epoch_rng
from train_encoder.data.text_sources import Texts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMPTY, FITTING = 64, 8
HELD_OUT = 256  # texts at most, where no others are named
_FEWEST = 20  # of which one is held out


class TextItems(Dataset):
    """Texts by sample number, a new order each epoch. `held_out`: leave every so many out, for `held_out_texts`."""

    records, features, preprocessing, fault_limit = None, None, None, 0

    def __init__(self, texts: Texts, *, name: str, seed: int, global_batch: int, held_out: bool) -> None:
        self.texts, self.seed = texts, seed
        self.stride = max(_FEWEST, len(texts) // HELD_OUT) if held_out and len(texts) >= _FEWEST else 0
        count = len(texts) - len(self.held_out_numbers())
        self.usable = count // global_batch * global_batch
        if not self.usable:
            raise ValueError(
                f"train_data {name} has {count} texts to train on, one batch of all processes needs {global_batch}; "
                "give more texts, or lower train_batch_size."
            )
        self.count, self._epoch, self._order = count, -1, np.zeros(0, np.int32)

    def held_out_numbers(self) -> range:
        """The numbers of the texts that are held out, spread over all."""
        return range(self.stride // 2, len(self.texts), self.stride) if self.stride else range(0)

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, self.usable)
        if epoch != self._epoch:
            order = epoch_rng(self.seed, epoch).permutation(self.count)
            self._epoch, self._order = epoch, order.astype(np.int32)
        index = self._index(int(self._order[place]))
        text = "" if number % EMPTY == EMPTY // 2 else self.texts[index]
        if number % FITTING == 0:
            count = random.Random(f"{self.seed}/fitting/{number}").randint(1, 4)
            text = join_sentences(split_sentences(text)[:count])
        return {"number": number, "key": index, "text": text}

    def _index(self, place: int) -> int:
        """The number of a text that is not held out."""
        if not self.stride:
            return place
        block, rest = divmod(place, self.stride - 1)
        return block * self.stride + rest + (rest >= self.stride // 2)


def held_out_texts(items: TextItems) -> list[str]:
    """The texts that `items` leaves out."""
    return [items.texts[number] for number in items.held_out_numbers()]


@dataclass(frozen=True)
class TextCollator:
    """Makes batches of token ids: `length` positions to read in, sentences of at most `window` to read alone."""

    tokenizer: PreTrainedTokenizerBase  # of the initial checkpoint
    window: int
    length: int

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, Any]:
        """Return input_ids, int64 [b, length]: the whole text, cut at the last sentence that fits, filled with pads;
        lengths, int64 [b]: tokens up to the end token, which is counted; rows: of each text its sentences without
        pads, or the one window that it fits in; firsts: its first window; keys.
        """
        batch = PromptBatch([Reader(self.tokenizer, self.window)], [[[item["text"] for item in items]]])
        (read,) = batch.rows(window=BY_SENTENCES)
        sides = read.sides[0]
        firsts = [text[0] for text in sides] if read.firsts is None else read.firsts[0]
        pairs = [self._rows(sentences, first) for sentences, first in zip(sides, firsts, strict=True)]
        pad = self.tokenizer.pad_token_id
        wholes = [whole_row(rows) for rows, _ in pairs]
        ends = [row.index(self.tokenizer.eos_token_id) + 1 for row in wholes]
        filled = [(*row, *[pad] * (self.length - len(row))) for row in wholes]
        return {
            "input_ids": torch.tensor(filled),
            "lengths": torch.tensor(ends),
            "rows": [rows for rows, _ in pairs],
            "firsts": [first for _, first in pairs],
            "keys": [item["key"] for item in items],
        }

    def _rows(self, sentences: list[Row], first: Row) -> tuple[list[Row], Row]:
        """The sentences that fit in `length`, and the first window."""
        kept, total = list(sentences[:1]), len(sentences[0])
        for row in sentences[1:]:
            total += len(row) - 2
            if total > self.length:
                break
            kept.append(row)
        return ([first], first) if len(kept) == 1 else (kept, first)
