"""Pictures as the page shows them: data addresses, small ones while a picture is being drawn."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from PIL import Image

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
