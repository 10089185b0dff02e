"""Prompts of any length as what a Stable Diffusion pipeline takes in their place: `pipe(**encode_prompt(pipe, x))`."""

import torch
from diffusers import DiffusionPipeline
from diffusers.loaders import TextualInversionLoaderMixin

from debias_sd.pipeline import _check_family
from debias_sd.prompts import pad_window, split_windows
from debias_sd.tokens import check_text


def encode_prompt(
    pipe: DiffusionPipeline,
    prompt: str | list[str],
    negative_prompt: str | list[str] | None = None,
    *,
    window: int | None = None,
) -> dict[str, torch.Tensor]:
    """Return `prompt_embeds` and `negative_prompt_embeds` of one length for prompts of any length: `pipe(**result)`.

    Each prompt is cut into windows of `window` tokens (default: all that the encoder reads), each encoded by itself,
    the states joined: (batch, windows * window, width) in the encoder's dtype. Shorter texts are filled with empty
    windows. One window equals `pipe.encode_prompt` bit for bit. `window=77` is the chunking of other tools.
    Raises ValueError for a window that the encoder does not have and for lists of different lengths.
    """
    _check_family(type(pipe).__name__, pipe.components)
    positions = pipe.text_encoder.config.max_position_embeddings
    window = pipe.tokenizer.model_max_length if window is None else window
    if not 3 <= window <= positions:
        raise ValueError(f"window is {window}, this text encoder reads 3 to {positions} tokens; use 77 or {positions}.")
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    negatives = [negative_prompt or ""] * len(prompts) if not isinstance(negative_prompt, list) else negative_prompt
    if not prompts or len(negatives) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts come with {len(negatives)} negative prompts; give one for each.")
    wanted = [_windows(pipe, text, window=window) for text in prompts]
    unwanted = [_windows(pipe, text, window=window) for text in negatives]
    count = max(len(windows) for windows in wanted + unwanted)
    # An offloaded encoder lies on the CPU between calls: the execution device is where its hooks bring it. Asked for
    # once, because diffusers walks through all modules for it.
    place = {"count": count, "window": window, "device": pipe._execution_device}
    return {
        "prompt_embeds": _encode_windows(pipe, wanted, **place),
        "negative_prompt_embeds": _encode_windows(pipe, unwanted, **place),
    }


def _windows(pipe: DiffusionPipeline, text: str, *, window: int) -> list[list[int]]:
    if not isinstance(text, str):
        raise ValueError(f"a prompt is of type {type(text).__name__}, allowed is str; give text.")
    check_text(text)
    if isinstance(pipe, TextualInversionLoaderMixin):
        text = pipe.maybe_convert_prompt(text, pipe.tokenizer)
    return split_windows(pipe.tokenizer, text, window=window)


@torch.no_grad()
def _encode_windows(
    pipe: DiffusionPipeline, batch: list[list[list[int]]], *, count: int, window: int, device: torch.device
) -> torch.Tensor:
    """Return the states of every text's windows, joined; one forward a window number, so that memory stays flat."""
    states = []
    for number in range(count):
        contents = [windows[number] if number < len(windows) else [] for windows in batch]
        ids = torch.tensor([pad_window(pipe.tokenizer, content, window=window) for content in contents])
        states.append(pipe.text_encoder(ids.to(device))[0])
    return torch.cat(states, dim=1).to(pipe.text_encoder.dtype)
