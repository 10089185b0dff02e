"""Tiny encoders for the app's tests, and a way through a run."""

from tiny_world import tiny_clip
from transformers import CLIPTextModel

from app.models import Models
from app.run import Run, compare
from debias_sd.encoder import TextEncoder


def tiny_encoder(window: int, seed: int) -> TextEncoder:
    """A random text encoder of `window` positions for the tiny pipeline."""
    model, tokenizer = tiny_clip(window=window, seed=seed)
    text = CLIPTextModel(model.config.text_config).eval()
    text.load_state_dict(model.text_model.state_dict())
    return TextEncoder(text, tokenizer)


async def finish(run: Run, models: Models) -> list[str]:
    """Go through a run; returns the states of its encoders at every report."""
    return ["/".join(track.state for track in run.tracks) async for _ in compare(run, models)]
