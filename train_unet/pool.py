"""What the UNet is trained on, made once: scenes' latents and the hidden states of their captions.

Encoding the same scenes and captions anew in every step would cost about half as much as the UNet itself.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from debias_sd.run_state import check_finite
from debias_sd.shapes.render import render
from train_unet.config import UnetConfig
from train_unet.unet import caption_of, draw_scene

BATCH = 64
COUNTS = 9


class Conditioner:
    """The frozen text encoder and its tokenizer: captions -> hidden states [batch, 77, width], as SD 1.x makes them."""

    def __init__(self, text_encoder: nn.Module, tokenizer: Any) -> None:
        self.text_encoder = text_encoder.eval().requires_grad_(False)
        self.tokenizer = tokenizer

    @torch.no_grad()
    def __call__(self, captions: list[str]) -> Tensor:
        ids = self.tokenizer(captions, padding="max_length", truncation=True, return_tensors="pt").input_ids
        return self.text_encoder(input_ids=ids).last_hidden_state


def make_pool(config: UnetConfig, vae: AutoencoderKL, conditioner: Conditioner, path: Path) -> dict[str, Tensor]:
    """Make the pool, or read it from `path` when this run has made it before.

    `latents`, float16 [9, scenes, channels, 6, 6], by number of things less one; `states`, float16
    [9, scenes, captions, 77, width], of captions that each name every thing; `empty`, float16 [77, width].
    """
    if path.exists():
        return load_file(path)
    latents, states = [], []
    starts = range(0, config.scenes_per_count, BATCH)
    jobs = [(count, start) for count in range(1, COUNTS + 1) for start in starts]
    for count, start in tqdm(jobs, desc="latents and hidden states of the training scenes"):
        indices = range(start, min(start + BATCH, config.scenes_per_count))
        scenes = [draw_scene(index, count, seed=config.seed) for index in indices]
        pixels = torch.from_numpy(np.stack([render(scene) for scene in scenes])).permute(0, 3, 1, 2).float() / 127.5 - 1
        captions = [
            caption_of(scene, random.Random(f"unet/{config.seed}/{count}/{index}/caption/{number}")).text
            for index, scene in zip(indices, scenes, strict=True)
            for number in range(config.captions_per_scene)
        ]
        with torch.no_grad():
            latents.append(vae.encode(pixels).latent_dist.mean.half())
            with torch.autocast("cpu", dtype=torch.bfloat16):
                encoded = conditioner(captions)
        states.append(encoded.half().unflatten(0, (len(scenes), config.captions_per_scene)))
    pool = {
        "latents": torch.cat(latents).unflatten(0, (COUNTS, -1)).contiguous(),
        "states": torch.cat(states).unflatten(0, (COUNTS, -1)).contiguous(),
        "empty": conditioner([""])[0].half().contiguous(),
    }
    check_finite(pool, what=f"{path.name} is not written: what the UNet learns from", advice="check the text encoder")
    temporary = path.with_suffix(".tmp")
    try:
        save_file(pool, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return pool
