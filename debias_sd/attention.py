"""Where an encoder looks: attention from the end token by position and sentence, and what a change there does.

The pooled vector is read at the end token (EOT), so its attention says which part of a caption can reach it at once
(arXiv 2602.22419, mean attention by position: Long-CLIP's falls by three orders of magnitude, DeBias-CLIP's is flat).
Attention is no proof of use; `sensitivity` measures the use: how far the pooled vector turns when the thing that one
sentence names gets another colour and shape.
"""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import torch

from debias_sd.report import hash_texts
from debias_sd.retrieval import DualEncoder, describe_encoder, embed_texts
from debias_sd.shapes.caption import SHAPE_WORDS, Caption
from debias_sd.shapes.heldout import prompt_set
from debias_sd.shapes.scene import COLOURS, SHAPES, Thing
from debias_sd.tokens import end_positions


@torch.inference_mode()
def end_attention(encoder: DualEncoder, texts: list[str], *, batch: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Attention from the end token, averaged over heads: all layers' mean and the last layer, each [texts, window].

    NaN behind the end token. The encoder must have been loaded with `attention="eager"`: other kinds keep no weights.
    """
    ids = encoder.tokens_of(texts)
    ends = end_positions(ids, end_id=encoder.end_id)
    mean, last = (np.full(ids.shape, np.nan, np.float32) for _ in range(2))
    for rows in torch.arange(len(ids)).split(batch):
        trimmed = ids[rows, : int(ends[rows].max()) + 1]
        layers = encoder.model.text_model(input_ids=trimmed, output_attentions=True).attentions
        if not layers:
            raise ValueError(
                "the encoder keeps no attention weights, eager attention does; load it with attention='eager'."
            )
        at_end = torch.stack([layer[torch.arange(len(rows)), :, ends[rows]].mean(1) for layer in layers]).numpy()
        for place, row in enumerate(rows.tolist()):
            size = int(ends[row]) + 1
            mean[row, :size] = at_end[:, place, :size].mean(0)
            last[row, :size] = at_end[-1, place, :size]
    return mean, last


def sentence_slots(encoder: DualEncoder, caption: Caption) -> list[slice]:
    """The slots of each sentence's tokens in the encoder's window; empty slices where the caption was cut."""
    slots, start = [], 1
    for sentence in caption.sentences:
        size = len(encoder.tokenizer(sentence, add_special_tokens=False)["input_ids"])
        cut = [min(place, encoder.window - 1) for place in (start, start + size)]
        slots.append(slice(*cut))
        start += size
    return slots


def _mean_of(groups: dict[int, list[float]]) -> list[float]:
    return [float(np.mean(groups[key])) for key in sorted(groups)]


def relative_attention(encoder: DualEncoder, captions: tuple[Caption, ...], attention: np.ndarray) -> dict[str, Any]:
    """Attention per token of each sentence relative to uniform over the caption's words (start and end left out).

    Returns `by_sentence` (0 is the summary), its `captions` counts, and means over the details of each half.
    """
    by_sentence: dict[int, list[float]] = {}
    halves: dict[int, list[float]] = {0: [], 1: []}
    for row, caption in zip(attention, captions, strict=True):
        slots = sentence_slots(encoder, caption)
        uniform = row[1 : slots[-1].stop].mean()
        for index, slot in enumerate(slots):
            if slot.stop == slot.start:
                continue
            relative = float(row[slot].mean() / uniform)
            by_sentence.setdefault(index, []).append(relative)
            if index:
                halves[half_of(index, len(slots) - 1)].append(relative)
    return {
        "by_sentence": _mean_of(by_sentence),
        "captions": [len(by_sentence[key]) for key in sorted(by_sentence)],
        "first_half": float(np.mean(halves[0])) if halves[0] else None,
        "second_half": float(np.mean(halves[1])) if halves[1] else None,
    }


def half_of(index: int, details: int) -> int:
    """0 or 1: the half of the `details` sentences in which sentence `index` (1 .. details) stands.

    >>> [half_of(index, 5) for index in (1, 2, 3, 4, 5)]
    [0, 0, 1, 1, 1]
    """
    return int(2 * (index - 0.5) >= details)


def with_changed_thing(sentence: str, thing: Thing, rng: random.Random) -> str:
    """`sentence` with the first mention of `thing`'s colour and of its shape replaced by others, wording unchanged."""
    colour = rng.choice([name for name in COLOURS if name != thing.colour])
    shape = SHAPE_WORDS[rng.choice([name for name in SHAPES if name != thing.shape])][0]
    old_shape = "|".join(SHAPE_WORDS[thing.shape])
    return re.sub(rf"\b{thing.colour} (?:{old_shape})\b", f"{colour} {shape}", sentence, count=1)


def sensitivity(encoder: DualEncoder, captions: tuple[Caption, ...], *, seed: int) -> dict[str, Any]:
    """Mean cosine change (1 - cosine) of the pooled vector when one sentence's thing changes, by sentence.

    Sentences about the two main things are left out: the summary still names them.
    """
    texts, changed, owners, places = [c.text for c in captions], [], [], []
    for number, caption in enumerate(captions):
        rng = random.Random(f"eval/{seed}/sensitivity/{number}")
        for index, things in enumerate(caption.named):
            if index and things[0] in caption.named[0]:
                continue
            sentences = list(caption.sentences)
            sentences[index] = with_changed_thing(sentences[index], things[0], rng)
            changed.append(" ".join(sentences))
            owners.append(number)
            places.append((index, len(sentences) - 1))
    before, after = embed_texts(encoder, texts), embed_texts(encoder, changed)
    change = 1 - (before[owners] * after).sum(-1)
    by_sentence: dict[int, list[float]] = {}
    halves: dict[int, list[float]] = {0: [], 1: []}
    for value, (index, details) in zip(change.tolist(), places, strict=True):
        by_sentence.setdefault(index, []).append(value)
        if index:
            halves[half_of(index, details)].append(value)
    return {
        "by_sentence": _mean_of(by_sentence),
        "captions": [len(by_sentence[key]) for key in sorted(by_sentence)],
        "summary": float(np.mean(by_sentence[0])),
        "first_half": float(np.mean(halves[0])),
        "second_half": float(np.mean(halves[1])),
    }


def _curve(attention: np.ndarray) -> list[float]:
    seen = ~np.isnan(attention).all(axis=0)
    return [float(value) for value in np.nanmean(attention[:, seen], axis=0)]


def evaluate_attention(encoder: DualEncoder, *, seed: int, count: int = 200) -> dict[str, Any]:
    """Measure one encoder on `count` held-out long captions of `seed`.

    `positions` are mean attentions by token position (0 is the start token) over the captions that reach it.
    """
    captions = prompt_set(seed, count=count).captions
    texts = [caption.text for caption in captions]
    mean, last = end_attention(encoder, texts)
    reached = (~np.isnan(mean)).sum(axis=0)
    return describe_encoder(encoder) | {
        "positions": {
            "all_layers": _curve(mean),
            "last_layer": _curve(last),
            "captions": reached[reached > 0].tolist(),
        },
        "relative": relative_attention(encoder, captions, mean),
        "relative_last_layer": relative_attention(encoder, captions, last),
        "sensitivity": sensitivity(encoder, captions, seed=seed),
        "captions": count,
        "texts_sha256": hash_texts(texts),
    }
