"""Attention of the token that an encoder is pooled at, over a text: CLIP's end token, SigLIP's last slot.

CLIP's mask is causal, and the end token sees the start token, the text and itself. SigLIP sees every slot, the pads
after a short text too, and is pooled at the last one, which is a pad of most texts; what goes to anything but the
text's own tokens is `elsewhere`. Mean over all heads; over all layers, and of the last layer alone (the paper's figure
names neither, arXiv 2602.22419).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float, Int
from transformers import PreTrainedModel

from debias_sd.measure.embedding import length_batches, rows_on
from debias_sd.measure.processes import Processes, run_side_by_side
from debias_sd.measure.towers import Towers

LAYERS = ("all_layers", "last_layer")


@dataclasses.dataclass(frozen=True)
class TokenAttention:
    """One text: for each of its tokens that was read, the word it belongs to and the attention that it gets.

    `attention`: all layers and the last one; `slots`: the same for every slot up to the pooled one, start, end and pads
    too; `words` counts the whole text, also what was cut off.
    """

    word_of: Int[np.ndarray, " tokens"]
    attention: Float[np.ndarray, "2 tokens"]
    slots: Float[np.ndarray, "2 slots"]
    words: int


@contextmanager
def _keeping_weights(model: PreTrainedModel) -> Iterator[None]:
    """Attention weights are kept only by the eager kind; the model is put back as it was."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def pooled_attention(towers: Towers, texts: Sequence[str], processes: Processes) -> list[TokenAttention]:
    """The attention of every text, in order; words are parted by single spaces.

    Batches have one shape and run on one thread each: the same bits in any number of processes.
    """
    rows, _ = towers.ids_of(texts)
    size = rows_on(towers.device)
    batches = list(length_batches([len(row) for row in rows], rows=size))

    @torch.inference_mode()  # of the thread that runs it
    def measure(chosen: list[int]) -> Float[np.ndarray, "rows 2 slots"]:
        full = (chosen * size)[:size]
        ids = torch.tensor([rows[row] for row in full], dtype=torch.long, device=towers.device)
        layers = towers.model.text_model(input_ids=ids, output_attentions=True).attentions
        slot = towers.pooled_slots(ids)
        at_slot = torch.stack([layer[torch.arange(size), :, slot].float().mean(1) for layer in layers])
        return torch.stack([at_slot.mean(0), at_slot[-1]], dim=1).cpu().numpy()[: len(chosen)]

    own = processes.share(batches)
    lanes = torch.get_num_threads() if towers.device == "cpu" else 1
    with _keeping_weights(towers.model):
        found = list(zip(own, run_side_by_side(measure, own, lanes=lanes), strict=True))
    by_row = {row: values for batch, part in processes.gather(found) for row, values in zip(batch, part, strict=True)}
    return [_of_text(towers, text, rows[row], by_row[row]) for row, text in enumerate(texts)]


def _of_text(towers: Towers, text: str, row: list[int], slots: Float[np.ndarray, "2 slots"]) -> TokenAttention:
    words = text.split(" ")
    ids, ends = _tokens_by_word(towers, words)
    first, read = _where_in(row, ids)
    word_of = np.searchsorted(ends, np.arange(read), side="right")
    last = int(towers.pooled_slots(torch.tensor([row]))[0])
    return TokenAttention(word_of, slots[:, first : first + read], slots[:, : last + 1], len(words))


def _tokens_by_word(towers: Towers, words: Sequence[str]) -> tuple[list[int], Int[np.ndarray, " words"]]:
    """The text's own tokens, and how many of them the text up to each of its words has.

    By counting: SigLIP's own tokenizer does not say where its tokens stand, and drops punctuation. No token spans two
    words of any of these models, so each word is read alone, where that gives the text's tokens; else the text up to
    each word, which takes as long as the square of the text.
    """
    whole, *alone = towers.own_ids([" ".join(words), *words])
    if [id for row in alone for id in row] == whole:
        return whole, np.cumsum([len(row) for row in alone])
    rows = towers.own_ids([" ".join(words[: number + 1]) for number in range(len(words))])
    return whole, np.maximum.accumulate([len(row) for row in rows])


def _where_in(row: list[int], ids: list[int]) -> tuple[int, int]:
    """Where in `row` the text's tokens start, and how many of them stand there (the others were cut off)."""
    best = (0, 0)
    for first in range(len(row)):
        if best[1] >= min(len(ids), len(row) - first):
            break
        length = 0
        while length < min(len(ids), len(row) - first) and row[first + length] == ids[length]:
            length += 1
        best = max(best, (first, length), key=lambda found: found[1])
    return best
