"""Variants, and the pictures of prompts in one: a variant is an encoder and how a prompt is fed to it.

What an encoder of 77 tokens does with a longer prompt is named in `FEEDS`, and nowhere else: cut to the window, read in
several windows (chunked, what people do today), or read by the encoder stretched to 248 positions without training. An
encoder with a long window has one variant, which reads in windows of its own length, so that nothing is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from debias_sd.report import split_name

if TYPE_CHECKING:  # commands read the names alone, without torch
    import numpy as np
    import torch
    from jaxtyping import UInt8

    from debias_sd.encoder import TextEncoder
    from debias_sd.pipelines.load import DiffusionPipeline

OnStep = Callable[[int, "torch.Tensor"], None]


@dataclasses.dataclass(frozen=True)
class Feed:
    """How a prompt past 77 tokens is fed to an encoder of 77: `part` of the variant's name in reports, and the rest.

    `stretched`: the encoder is stretched first; `in_windows`: by `encode_prompt`, else the pipeline cuts it.
    """

    part: str
    stretched: bool
    in_windows: bool


FEEDS = {
    "cut": Feed("", stretched=False, in_windows=False),
    "windows": Feed("-chunked", stretched=False, in_windows=True),
    "stretched": Feed("-stretched", stretched=True, in_windows=True),
}


@dataclasses.dataclass(frozen=True)
class Variant:
    """A pipeline, and how it reads a prompt: `reading` are options of `encode_prompt`; None: by itself, and cut."""

    name: str
    pipe: DiffusionPipeline
    reading: Mapping[str, Any] | None = None

    @property
    def window(self) -> int:
        """Tokens that are read at a time."""
        return self.pipe.tokenizer.model_max_length

    def conditioning(self, prompts: Sequence[str], negative: str = "") -> dict[str, Any]:
        """What the pipeline's call takes for these prompts."""
        if self.reading is not None:
            from debias_sd.prompts.conditioning import encode_prompt

            return encode_prompt(self.pipe, list(prompts), negative or None, **self.reading)
        return {"prompt": list(prompts)} | ({"negative_prompt": [negative] * len(prompts)} if negative else {})


def variants_of(base: DiffusionPipeline, name: str, encoder: TextEncoder | str | None) -> dict[str, Variant]:
    """The variants of one encoder in the untouched `base`, by the names of `FEEDS`.

    None is the pipeline's own encoder, "stretched" the same with 248 positions. ValueError for one that does not fit.
    """
    from debias_sd.encoder import TextEncoder
    from debias_sd.pipelines.load import STRETCHED, with_text_encoder
    from debias_sd.prompts.batch import SHORT

    plain = base if encoder is None else with_text_encoder(base, encoder, min_positions=SHORT)
    plain.set_progress_bar_config(disable=True)
    length = plain.tokenizer.model_max_length
    if length > SHORT:
        return {"windows": Variant(name, plain, {"window": length})}
    recipe, seed = split_name(name)
    end = "" if seed is None else f"-{seed}"
    stretched = with_text_encoder(base, encoder.stretch() if isinstance(encoder, TextEncoder) else STRETCHED)
    stretched.set_progress_bar_config(disable=True)
    found = {}
    for key, feed in FEEDS.items():
        pipe = stretched if feed.stretched else plain
        reading = {"window": pipe.tokenizer.model_max_length} if feed.in_windows else None
        found[key] = Variant(f"{recipe}{feed.part}{end}" if feed.part else name, pipe, reading)
    return found


def draw(
    variant: Variant,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    steps: int,
    guidance: float,
    negative: str = "",
    on_step: OnStep | None = None,
    **options: Any,
) -> UInt8[np.ndarray, "prompts height width 3"]:
    """Pictures of `prompts`, a seed each, the same noise in every variant and on every device.

    `on_step` gets the number of steps done and the latents, and may raise; `options` go to the pipeline (height,
    width). ValueError where a picture holds NaN or infinity.
    """
    import numpy as np
    import torch

    def after_step(_: DiffusionPipeline, step: int, __: object, tensors: dict[str, Any]) -> dict[str, Any]:
        on_step(step + 1, tensors["latents"])
        return tensors

    if on_step is not None:
        options["callback_on_step_end"] = after_step
    with torch.inference_mode():
        output = variant.pipe(
            **variant.conditioning(prompts, negative),
            generator=[torch.Generator("cpu").manual_seed(seed) for seed in seeds],
            num_inference_steps=steps,
            guidance_scale=guidance,
            output_type="np",
            **options,
        )
    pixels = np.asarray(output.images)
    if not np.isfinite(pixels).all():
        raise ValueError(
            f"a picture of {variant.name} holds NaN (it would be black): numbers overflowed in the UNet or the VAE; "
            "use dtype float32 or bfloat16, or less guidance."
        )
    return np.rint(255 * pixels).astype(np.uint8)
