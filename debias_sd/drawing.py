"""Variants, and the pictures of prompts in one: a variant is an encoder and how a prompt is fed to it.

What an encoder of 77 tokens does with a longer prompt is named in `FEEDS`, and nowhere else: cut to the window, read in
several windows (chunked, what people do today), read by the encoder stretched to 248 positions without training, or
read sentence by sentence (`prompts/states.py`). An encoder with a long window has one variant, which reads in windows
of its own length, so that nothing is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
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

    `reading` is as in `Variant`. `stretched`: the encoder is stretched first.
    """

    part: str
    reading: Mapping[str, Any] | None
    stretched: bool = False


FEEDS = {
    "cut": Feed("", None),
    "windows": Feed("-chunked", {}),
    "stretched": Feed("-stretched", {}, stretched=True),
    "sentences": Feed("-by-sentence", {"window": "sentence"}),
    "longalign": Feed("-longalign", {"window": "longalign"}),
}
USUAL = tuple(key for key in FEEDS if key != "longalign")  # which needs a UNet that was trained with it
OWN_READINGS = {"chunked": "windows", "sentences": "sentences"}  # names of encoders -> how the base's own is fed


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

    @property
    def reach(self) -> int | None:
        """Tokens that are read in all, with start and end; None: every prompt is read to its end."""
        return self.window if self.reading is None else None

    def conditioning(self, prompts: Sequence[str], negative: str = "") -> dict[str, Any]:
        """What the pipeline's call takes for these prompts."""
        if self.reading is not None:
            from debias_sd.prompts.conditioning import encode_prompt

            return encode_prompt(self.pipe, list(prompts), negative or None, **self.reading)
        return {"prompt": list(prompts)} | ({"negative_prompt": [negative] * len(prompts)} if negative else {})


def variants_of(
    base: DiffusionPipeline, name: str, encoder: TextEncoder | str | None, feeds: Collection[str] = tuple(FEEDS)
) -> dict[str, Variant]:
    """The variants of one encoder in the untouched `base`, by those names of `FEEDS` that are in `feeds`.

    None is the pipeline's own encoder, "stretched" the same with 248 positions, and a name of `OWN_READINGS` one
    variant of it. An encoder with a long window has the one variant "windows". ValueError for one that does not fit.
    """
    from debias_sd.encoder import TextEncoder
    from debias_sd.pipelines.load import STRETCHED, with_text_encoder
    from debias_sd.prompts.batch import SHORT

    if isinstance(encoder, str) and encoder in OWN_READINGS:
        key = OWN_READINGS[encoder]
        return {key: Variant(name, base, FEEDS[key].reading)}
    plain = base if encoder is None else with_text_encoder(base, encoder, min_positions=SHORT)
    plain.set_progress_bar_config(disable=True)
    if plain.tokenizer.model_max_length > SHORT:
        return {"windows": Variant(name, plain, FEEDS["windows"].reading)}
    recipe, seed = split_name(name)
    end = "" if seed is None else f"-{seed}"
    chosen = {key: feed for key, feed in FEEDS.items() if key in feeds}
    stretched = plain
    if any(feed.stretched for feed in chosen.values()):
        stretched = with_text_encoder(base, encoder.stretch() if isinstance(encoder, TextEncoder) else STRETCHED)
        stretched.set_progress_bar_config(disable=True)
    return {
        key: Variant(
            f"{recipe}{feed.part}{end}" if feed.part else name, stretched if feed.stretched else plain, feed.reading
        )
        for key, feed in chosen.items()
    }


def variants_in(base: DiffusionPipeline, encoders: Mapping[str, TextEncoder | str | None]) -> dict[str, Variant]:
    """One variant an encoder, by name: what its pipeline reads by itself, cut where it ends; `OWN_READINGS` to the end.

    All share `base` but text encoder, tokenizer and scheduler. ValueError for an encoder that does not fit.
    """
    from debias_sd.pipelines.load import with_text_encoder
    from debias_sd.prompts.batch import SHORT

    found = {}
    for name, encoder in encoders.items():
        if isinstance(encoder, str) and encoder in OWN_READINGS:
            (found[name],) = variants_of(base, name, encoder).values()
        else:
            pipe = base if encoder is None else with_text_encoder(base, encoder, min_positions=SHORT)
            found[name] = Variant(name, pipe)
    for variant in found.values():
        variant.pipe.set_progress_bar_config(disable=True)
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
