"""The embedded world's UNet and VAE.

The UNet is a stock `UNet2DConditionModel` on 6 x 6 latents, conditioned as SD 1.x is on CLIP.

Cross-attention reads the text encoder's last hidden state (after the final norm) at all 77 positions, pads included;
there is no position embedding for the picture and no mask over the pads, as in Stable Diffusion. Three transformer
layers a block are what makes the binding of place, colour and shape take off at this size (`docs/log.md`).

The VAE is a stock `AutoencoderKL`, 48 x 48 pixels to 6 x 6 latents of 16 channels. One latent position covers 8 x 8
pixels, so a cell of the scene is 2 x 2 positions. After training, the mean and the spread of each latent channel are
folded into the two 1 x 1 convolutions beside the latents (exact: they do not pad), so that the UNet sees channels of
mean 0 and variance 1 and `scaling_factor` is 1.

Their training states on disk are written whole, or not at all, and read without pickle.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from torch import Tensor

from debias_sd.run_state import check_finite, read_state, write_state
from debias_sd.shapes.caption import Caption, opening_caption, sentence_caption, tag_caption
from debias_sd.shapes.render import SIDE, render
from debias_sd.shapes.scene import Scene, random_scene

LATENT_SIDE = 6
LATENT_CHANNELS = 16
VAE_SAVE_STEPS, DECODER_SAVE_STEPS = 500, 200
Report = Callable[[int, float], None]
DIVERGED = (
    "what was saved before stays, but the same settings lead here again: start a new run, in another output_dir, with "
    "a lower learning rate"
)


def new_unet(seed: int, *, latent_channels: int, text_width: int, widths: tuple[int, int]) -> UNet2DConditionModel:
    """A UNet with two levels (6 x 6 and 3 x 3) and random weights."""
    torch.manual_seed(seed)
    return UNet2DConditionModel(
        sample_size=LATENT_SIDE,
        in_channels=latent_channels,
        out_channels=latent_channels,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=widths,
        layers_per_block=1,
        transformer_layers_per_block=(2, 2),
        cross_attention_dim=text_width,
        attention_head_dim=4,
        norm_num_groups=16,
    )


def new_scheduler() -> DDIMScheduler:
    """Squared-cosine noise and v-prediction, which suit small latents; saved into the pipeline's folder."""
    return DDIMScheduler(
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=False,
        set_alpha_to_one=True,
        timestep_spacing="trailing",
        steps_offset=1,  # without effect on trailing steps; Stable Diffusion pipelines ask for it
    )


def most_things(progress: float) -> int:
    """Curriculum: the largest scene at `progress` 0..1 of the run; one thing at first, nine from two fifths on."""
    steps = ((0.05, 1), (0.12, 2), (0.2, 4), (0.3, 6), (0.4, 8))
    return next((count for until, count in steps if progress < until), 9)


def draw_scene(index: int, count: int, *, seed: int) -> Scene:
    """Scene number `index` of `count` things of the training pool."""
    return random_scene(random.Random(f"unet/{seed}/{count}/{index}"), count)


def caption_of(scene: Scene, rng: random.Random) -> Caption:
    """A caption of at most 77 tokens that names every thing of the scene, so that what is not named is not drawn.

    Up to nine things as tags; up to five or six as sentences, or as a summary with sentences, where all of it fits.
    """
    style, things = rng.random(), set(scene.things)
    if 2 <= len(things) and style < 0.4:
        caption = opening_caption(scene, rng)
    elif style < 0.75:
        caption = sentence_caption(scene, rng)
    else:
        return tag_caption(scene, rng)
    return caption if {thing for named in caption.named for thing in named} == things else tag_caption(scene, rng)


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


def save_state(path: Path, step: int, parts: dict[str, Any]) -> None:
    """Write `step` and the state dict of every part to `path`; NaN, infinity or a crash leaves the previous file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": step, **{name: part.state_dict() for name, part in parts.items()}}
    check_finite(state, what=f"{path.name} of step {step} is not saved: the run", advice=DIVERGED)
    write_state(path, state)


def load_state(path: Path, parts: dict[str, Any]) -> int:
    """Load `path` into the parts and return its step; 0 when there is no such file yet."""
    if not path.exists():
        return 0
    state = read_state(path)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["step"])
