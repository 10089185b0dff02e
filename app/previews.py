"""Pictures as data addresses, previews while one is drawn, and heatmaps: where a real UNet attended to a sentence.

Each cross-attention layer's processor is wrapped while one picture is drawn: the layer's output is the wrapped
processor's own, so the picture stays the same bit for bit, and the probabilities are computed once more beside it.
Attention is a hint where a sentence's words acted, not a verdict. Denoisers without cross-attention layers (the
transformers of Stable Diffusion 3 and FLUX) have no heatmaps.
"""

from __future__ import annotations

import base64
import contextlib
import io
import math
from base64 import b64encode
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image

from app.look import PALETTE

_SMALL = 64  # pixels: up to here the VAE decodes in milliseconds, and a preview is the real thing
_PREVIEW_SIDE = 128
# What one latent channel of Stable Diffusion 1.x adds to red, green and blue: a linear fit that public UIs use.
_SD1 = ((0.298, 0.207, 0.208), (0.187, 0.286, 0.173), (-0.158, 0.189, 0.264), (-0.184, -0.271, -0.473))


def data_url(image: np.ndarray) -> str:
    """A picture, uint8 [height, width, 3], as a PNG data address."""
    content = io.BytesIO()
    Image.fromarray(image).save(content, format="PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def thumb(image: np.ndarray) -> np.ndarray:
    """`image` at most 128 pixels wide and high; the embedded world's as it is."""
    small = Image.fromarray(image)
    small.thumbnail((_PREVIEW_SIDE, _PREVIEW_SIDE))
    return np.asarray(small)


@torch.inference_mode()
def preview_of(pipe: object, latents: torch.Tensor) -> np.ndarray | None:
    """A small picture of `latents` [1, channels, h, w] in the middle of a run; None where none is cheap."""
    if latents.ndim != 4 or not bool(torch.isfinite(latents).all()):
        return None
    if latents.shape[-1] * pipe.vae_scale_factor <= _SMALL:
        pixels = pipe.vae.decode(latents / pipe.vae.config.scaling_factor).sample[0]
        pixels = (pixels.float() / 2 + 0.5).permute(1, 2, 0)
    elif latents.shape[1] == 4:
        weights = torch.tensor(_SD1, dtype=torch.float32, device=latents.device)
        pixels = torch.einsum("chw,cr->hwr", latents[0].float(), weights) / 2 + 0.5
    else:
        return None
    array = np.rint(255 * pixels.clamp(0, 1).cpu().numpy()).astype(np.uint8)
    image = Image.fromarray(array)
    image.thumbnail((_PREVIEW_SIDE, _PREVIEW_SIDE))
    return np.asarray(image)


GRID = 32  # maps are averaged at this many cells a side; finer layers are left out
_GLOW = tuple(bytes.fromhex(PALETTE["glow"][0][1:]))


class Maps:
    """Attention of all layers and steps so far: mean over heads, [tokens, GRID, GRID]; `is_on` says whether to look."""

    def __init__(self) -> None:
        self.is_on = True
        self._sum: torch.Tensor | None = None
        self._count = 0

    def add(self, probabilities: torch.Tensor) -> None:
        """Add one layer: [heads, cells, tokens], cells of a square picture in reading order."""
        side = math.isqrt(probabilities.shape[1])
        if side * side != probabilities.shape[1] or side > GRID:
            return
        mean = probabilities.float().mean(0).T.reshape(1, -1, side, side)
        mean = torch.nn.functional.interpolate(mean, size=(GRID, GRID), mode="bilinear")[0].cpu()
        self._sum = mean if self._sum is None else self._sum + mean
        self._count += 1

    def of(self, first: int, last: int) -> np.ndarray | None:
        """The attention on tokens `first` to `last`, float32 [GRID, GRID]; None when no such token was read."""
        if self._sum is None or first >= self._sum.shape[0]:
            return None
        return (self._sum[first : last + 1].sum(0) / self._count).numpy()


class _Watched:
    """A processor that lets `maps` see what its layer attends to."""

    def __init__(self, inner: object, maps: Maps) -> None:
        self.inner, self.maps = inner, maps

    def __call__(
        self,
        attn: torch.nn.Module,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        temb: torch.Tensor | None = None,
        **options: object,
    ) -> torch.Tensor:
        if self.maps.is_on and encoder_hidden_states is not None and hidden_states.shape[1] <= GRID * GRID:
            half = hidden_states.shape[0] // 2 if hidden_states.shape[0] > 1 else 0  # guidance: the prompt's comes last
            query = attn.head_to_batch_dim(attn.to_q(hidden_states[half : half + 1]))
            key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states[half : half + 1]))
            self.maps.add(attn.get_attention_scores(query, key))
        return self.inner(attn, hidden_states, encoder_hidden_states, attention_mask, temb, **options)


@contextlib.contextmanager
def watch_attention(pipe: object) -> Iterator[Maps | None]:
    """Maps of what is drawn in the block; None where the denoiser has no cross-attention layers."""
    unet = pipe.components.get("unet")
    if unet is None:
        yield None
        return
    maps, before = Maps(), unet.attn_processors
    unet.set_attn_processor(
        {name: _Watched(inner, maps) if ".attn2." in name else inner for name, inner in before.items()}
    )
    try:
        yield maps
    finally:
        unet.set_attn_processor(dict(before))


def overlay_url(values: np.ndarray) -> str:
    """A map as a PNG data address: one colour, as opaque as the attention is strong."""
    spread = float(values.max() - values.min())
    alpha = (values - values.min()) / spread if spread else np.zeros_like(values)
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = _GLOW
    pixels[..., 3] = np.rint(255 * alpha)
    content = io.BytesIO()
    Image.fromarray(pixels).resize((4 * GRID, 4 * GRID), Image.Resampling.BILINEAR).save(content, format="PNG")
    return "data:image/png;base64," + b64encode(content.getvalue()).decode("ascii")
