"""Tiny models for the app's tests, and a way through a run."""

import asyncio
from typing import Any

from tiny_world import tiny_clip, tiny_pipeline
from transformers import CLIPTextModel

from app.live_run import Run, compare, start_run
from app.models import Models
from app.request import Request
from debias_sd.drawing import variants_in
from debias_sd.encoder import TextEncoder

NAMES = ("base", "debias")


def tiny_encoder(window: int, seed: int) -> TextEncoder:
    """A random text encoder of `window` positions for the tiny pipeline."""
    model, tokenizer = tiny_clip(window=window, seed=seed)
    text = CLIPTextModel(model.config.text_config).eval()
    text.load_state_dict(model.text_model.state_dict())
    return TextEncoder(text, tokenizer)


def tiny_models(*, is_real: bool = False, **options: Any) -> Models:
    """The app's models: two encoders, of 77 and 248 tokens; `is_real`: none that the checker reads."""
    base = tiny_pipeline()
    if is_real:
        base.unet.register_to_config(sample_size=16)  # 128 x 128 pixels: not the embedded world's
    encoders = {"base": tiny_encoder(77, 0), "debias": tiny_encoder(248, 1)}
    return Models(variants_in(base, encoders), base, **options)


async def finish(run: Run, models: Models) -> list[str]:
    """Go through a run; returns the states of its encoders at every report."""
    return ["/".join(track.state for track in run.tracks) async for _ in compare(run, models)]


def drawn(models: Models, prompt: str, names: tuple[str, ...] = NAMES, *, steps: int = 1, **settings: Any) -> Run:
    """A run that is over."""
    run = start_run(Request(prompt, names, steps=steps, **settings), models)
    asyncio.run(finish(run, models))
    return run
