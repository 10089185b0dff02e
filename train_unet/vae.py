"""Train the embedded world's VAE: a stock `AutoencoderKL`, 48 x 48 pixels to 6 x 6 latents of 16 channels.

One latent position covers 8 x 8 pixels, so a cell of the scene is 2 x 2 positions. After training, the mean and the
spread of each latent channel are folded into the two 1 x 1 convolutions beside the latents (exact: they do not pad), so
that the UNet sees channels of mean 0 and variance 1 and `scaling_factor` is 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor

from debias_sd.shapes.render import SIDE, render
from debias_sd.shapes.scene import random_scene
from train_unet.state import load_state, save_state

LATENT_CHANNELS = 16
VAE_SAVE_STEPS, DECODER_SAVE_STEPS = 500, 200
Report = Callable[[int, float], None]


def new_vae(seed: int) -> AutoencoderKL:
    """A small `AutoencoderKL` with random weights; four levels, as Stable Diffusion's, so that 8 pixels make one."""
    torch.manual_seed(seed)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 32, 48, 64),
        layers_per_block=1,
        latent_channels=LATENT_CHANNELS,
        norm_num_groups=8,
        sample_size=SIDE,
        scaling_factor=1.0,
        mid_block_add_attention=False,
    )


def pictures(start: int, count: int, *, seed: int) -> Tensor:
    """Rendered scenes number `start` and on, of 1 to 9 things: float32 [count, 3, 48, 48] in -1..1."""
    rngs = [random.Random(f"vae/{seed}/{start + index}") for index in range(count)]
    images = np.stack([render(random_scene(rng, rng.randint(1, 9))) for rng in rngs])
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1


@torch.no_grad()
def standardise_latents(vae: AutoencoderKL, images: Tensor) -> None:
    """Fold the latents' mean and spread over `images` into `quant_conv` and `post_quant_conv`, in place."""
    latents = vae.encode(images).latent_dist.mean
    mean, std = latents.mean(dim=(0, 2, 3)), latents.std(dim=(0, 2, 3))
    encode, decode, channels = vae.quant_conv, vae.post_quant_conv, len(mean)
    encode.weight[:channels] /= std[:, None, None, None]
    encode.bias[:channels] = (encode.bias[:channels] - mean) / std
    encode.bias[channels:] -= 2 * std.log()  # the second half holds log variances
    decode.bias += (decode.weight[:, :, 0, 0] * mean).sum(dim=1)
    decode.weight *= std[None, :, None, None]


def train_vae(
    folder: Path, *, steps: int, batch_size: int, learning_rate: float, seed: int, report: Report
) -> AutoencoderKL:
    """Train for `steps` batches of `batch_size` pictures, resuming from `folder`; `report(step, loss)` after each."""
    vae = new_vae(seed)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=learning_rate, weight_decay=1e-4, fused=True)
    first = load_state(folder / "vae-state.pt", {"model": vae, "optimizer": optimizer})
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 50, (steps - step) / (0.3 * steps))
        images = pictures(step * batch_size, batch_size, seed=seed)
        posterior = vae.encode(images).latent_dist
        error = vae.decode(posterior.sample(torch.Generator().manual_seed(step))).sample - images
        loss = error.square().mean() + 0.5 * error.abs().mean()
        divergence = 0.5 * (posterior.mean**2 + posterior.var - 1 - posterior.logvar).mean()
        optimizer.zero_grad()
        (loss + 2e-4 * divergence).backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        report(step, float(loss.detach()))
        if (step + 1) % VAE_SAVE_STEPS == 0:
            save_state(folder / "vae-state.pt", step + 1, {"model": vae, "optimizer": optimizer})
    vae.eval()
    standardise_latents(vae, pictures(10_000_000, 512, seed=seed))
    return vae


def refine_decoder(
    vae: AutoencoderKL, folder: Path, *, steps: int, batch_size: int, learning_rate: float, seed: int, report: Report
) -> AutoencoderKL:
    """Train only the decoder for `steps` more batches, on latents without noise, resuming from `folder`.

    As with Stable Diffusion's own ft-MSE autoencoder: pictures get sharper and the latents, which the UNet learns,
    stay what they are.
    """
    vae.requires_grad_(False)
    trained = torch.nn.ModuleList([vae.post_quant_conv, vae.decoder]).requires_grad_(True)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=learning_rate, weight_decay=0.0, fused=True)
    parts = {"model": vae, "optimizer": optimizer}
    for step in range(load_state(folder / "decoder-state.pt", parts), steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * min(1.0, (step + 1) / 50, (steps - step) / (0.6 * steps))
        images = pictures(30_000_000 + step * batch_size, batch_size, seed=seed)
        with torch.no_grad():
            latents = vae.encode(images).latent_dist.mean
        error = vae.decode(latents).sample - images
        loss = error.square().mean() + 0.25 * error.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        report(step, float(loss.detach()))
        if (step + 1) % DECODER_SAVE_STEPS == 0:
            save_state(folder / "decoder-state.pt", step + 1, parts)
    return vae.eval()
