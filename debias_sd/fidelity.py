"""Which sentences of a prompt are in its picture? Shares of named things drawn, by the sentence's place.

Pictures are judged by the world's checker, from pixels alone: a thing counts as drawn when its cell shows its shape,
colour and size. The late-detail score is the share, in percent, of things that are named in the second half of a
prompt's detail sentences and not in its summary. Its floor is the same pictures judged against prompts of other
scenes, its ceiling the checker on rendered scenes. Row names: a 77-token encoder is measured three ways, cut to its
window, chunked (several windows of 77, what people do today) and stretched to 248 without training.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from debias_sd.attention import half_of
from debias_sd.encoder import TextEncoder
from debias_sd.pipelines.load import STRETCHED, DiffusionPipeline, with_text_encoder
from debias_sd.prompts.conditioning import encode_prompt
from debias_sd.report import hash_texts, split_name
from debias_sd.shapes.caption import Caption, length
from debias_sd.shapes.check import CellReading, read_picture
from debias_sd.shapes.heldout import PromptSet
from debias_sd.shapes.scene import Thing

SHORT_WINDOW = 77
Progress = Callable[[int], None]


@dataclasses.dataclass(frozen=True)
class Way:
    """One way from prompts to pictures: a pipeline, and the window in which a prompt is chunked (None: it is cut)."""

    name: str
    pipe: DiffusionPipeline
    chunk: int | None = None


@dataclasses.dataclass(frozen=True)
class Drawn:
    """One named thing: its sentence, the number of detail sentences, and what stands in its cell."""

    sentence: int
    details: int
    in_summary: bool
    start: int
    thing: Thing
    found: CellReading

    @property
    def is_drawn(self) -> bool:
        return self.found.thing == self.thing

    def shares(self, part: str) -> bool:
        """Whether what stands in the cell has the named thing's `part`: colour, shape or size."""
        return self.found.thing is not None and getattr(self.found.thing, part) == getattr(self.thing, part)

    @property
    def place(self) -> float:
        """0..1 within the detail sentences; negative for the summary."""
        return (self.sentence - 0.5) / self.details if self.sentence else -1.0

    @property
    def is_late_detail(self) -> bool:
        return self.sentence > 0 and not self.in_summary and half_of(self.sentence, self.details) == 1


def ways_of(base: DiffusionPipeline, name: str, encoder: TextEncoder | str | None) -> list[Way]:
    """The rows of one encoder in the untouched `base`: one for a long window, three for a window of 77.

    None is the encoder of `base` itself, "stretched" the same with 248 positions.
    """
    pipe = base if encoder is None else with_text_encoder(base, encoder, min_positions=SHORT_WINDOW)
    pipe.set_progress_bar_config(disable=True)
    if pipe.tokenizer.model_max_length > SHORT_WINDOW:
        return [Way(name, pipe)]
    recipe, seed = split_name(name)
    suffix = "" if seed is None else f"-{seed}"
    stretched = with_text_encoder(base, encoder.stretch() if isinstance(encoder, TextEncoder) else STRETCHED)
    stretched.set_progress_bar_config(disable=True)
    return [
        Way(name, pipe),
        Way(f"{recipe}-chunked{suffix}", pipe, chunk=SHORT_WINDOW),
        Way(f"{recipe}-stretched{suffix}", stretched),
    ]


@torch.inference_mode()
def draw(way: Way, prompts: Sequence[str], seeds: Sequence[int], *, steps: int, guidance: float) -> np.ndarray:
    """Pictures of `prompts`, uint8 [prompts, side, side, 3]; one seed a prompt, so that ways can be paired."""
    generators = [torch.Generator("cpu").manual_seed(seed) for seed in seeds]
    text = {"prompt": list(prompts)} if way.chunk is None else encode_prompt(way.pipe, list(prompts), window=way.chunk)
    output = way.pipe(
        **text, generator=generators, num_inference_steps=steps, guidance_scale=guidance, output_type="np"
    )
    pixels = np.asarray(output.images)
    if not np.isfinite(pixels).all():
        raise ValueError(
            f"a picture of {way.name} holds NaN (it would be black): numbers overflowed in the UNet or the VAE; use "
            "dtype float32 or bfloat16, or less guidance."
        )
    return np.rint(255 * pixels).astype(np.uint8)


def judge_caption(image: np.ndarray, caption: Caption) -> list[Drawn]:
    """What became of every thing that `caption` names, sentence by sentence."""
    found, start, verdicts = read_picture(image), 1, []
    for index, (sentence, things) in enumerate(zip(caption.sentences, caption.named, strict=True)):
        for thing in things:
            named = index > 0 and thing in caption.named[0]
            details = len(caption.sentences) - 1
            verdicts.append(Drawn(index, details, named, start, thing, found[thing.cell]))
        start += length(sentence)
    return verdicts


def _percent(claims: Sequence[bool]) -> float | None:
    return float(100 * np.mean(claims)) if len(claims) else None


def summarise(judged: list[list[Drawn]]) -> dict[str, Any]:
    """Shares drawn, in percent, over the judged prompts; None where nothing was named."""
    everything = [drawn for prompt in judged for drawn in prompt]
    details = [drawn for drawn in everything if drawn.sentence]
    late = [drawn for drawn in details if drawn.is_late_detail]
    sentences = range(max(drawn.sentence for drawn in everything) + 1)
    by_sentence = [[d.is_drawn for d in everything if d.sentence == index] for index in sentences]
    per_prompt = [[drawn for drawn in prompt if drawn.is_late_detail] for prompt in judged]
    return {
        "late_detail": _percent([d.is_drawn for d in late]),
        "late_detail_colour": _percent([d.shares("colour") for d in late]),
        "late_detail_shape": _percent([d.shares("shape") for d in late]),
        "late_detail_anything": _percent([d.found.thing is not None for d in late]),
        "summary": _percent(by_sentence[0]),
        "first_half": _percent([d.is_drawn for d in details if half_of(d.sentence, d.details) == 0]),
        "second_half": _percent([d.is_drawn for d in details if half_of(d.sentence, d.details) == 1]),
        "past_77": _percent([d.is_drawn for d in details if d.start >= SHORT_WINDOW - 1 and not d.in_summary]),
        "by_quarter": [_percent([d.is_drawn for d in details if int(4 * d.place) == q]) for q in range(4)],
        "by_sentence": [_percent(claims) for claims in by_sentence],
        "by_sentence_details": [
            _percent([d.is_drawn for d in details if d.sentence == index and not d.in_summary]) for index in sentences
        ],
        "named_by_sentence": [len(claims) for claims in by_sentence],
        "late_details": len(late),
        "late_per_prompt": [[sum(d.is_drawn for d in prompt), len(prompt)] for prompt in per_prompt],
    }


def unnamed_cells(images: np.ndarray, captions: Sequence[Caption]) -> dict[str, Any]:
    """Cells that no sentence names: how many there are, and the percentage in which something was drawn."""
    claims = []
    for image, caption in zip(images, captions, strict=True):
        named = {thing.cell for things in caption.named for thing in things}
        claims += [reading.thing is not None for cell, reading in enumerate(read_picture(image)) if cell not in named]
    return {"cells": len(claims), "filled_percent": _percent(claims)}


def floor_of(images: np.ndarray, captions: Sequence[Caption]) -> dict[str, Any]:
    """The same pictures judged against the next prompt's caption: what chance and the world's statistics give."""
    others = [*captions[1:], captions[0]]
    return summarise([judge_caption(image, other) for image, other in zip(images, others, strict=True)])


def evaluate_fidelity(
    way: Way,
    prompts: PromptSet,
    *,
    seed: int,
    steps: int = 25,
    guidance: float = 2.0,
    batch: int = 25,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Draw all prompts in one way and judge them; the i-th prompt has the same noise in every way."""
    texts = [caption.text for caption in prompts.captions]
    images = []
    for start in range(0, len(texts), batch):
        chosen = range(start, min(start + batch, len(texts)))
        seeds = [1_000_000 * seed + index for index in chosen]
        images.append(draw(way, [texts[i] for i in chosen], seeds, steps=steps, guidance=guidance))
        progress(len(chosen))
    pictures = np.concatenate(images)
    judged = [judge_caption(image, caption) for image, caption in zip(pictures, prompts.captions, strict=True)]
    floor = floor_of(pictures, prompts.captions) if len(texts) > 1 else None
    return summarise(judged) | {
        "unnamed": unnamed_cells(pictures, prompts.captions),
        "floor": floor,
        "window": way.chunk or way.pipe.tokenizer.model_max_length,
        "chunked": way.chunk is not None,
        "prompts": len(texts),
        "texts_sha256": hash_texts(texts),
    }
