"""What a UNet run writes as it goes: its loss, and how much of held-out short prompts is drawn."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from debias_sd.shapes.check import judge
from debias_sd.shapes.scene import random_scene
from train_unet.unet import caption_of, new_scheduler

GUIDANCE, STEPS = 3.0, 20
COUNTS = (1, 3, 5, 7, 9)


@torch.no_grad()
def sample_latents(unet: nn.Module, states: Tensor, empty: Tensor, *, seed: int) -> Tensor:
    """Plain guided DDIM sampling from hidden states [n, 77, width]; the pipelines' own loop without its overhead."""
    scheduler = new_scheduler()
    scheduler.set_timesteps(STEPS)
    shape = (len(states), unet.config.in_channels, unet.config.sample_size, unet.config.sample_size)
    latents = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    both = torch.cat([empty.expand_as(states), states])
    for timestep in scheduler.timesteps:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = unet(torch.cat([latents, latents]), timestep, encoder_hidden_states=both).sample.float()
        without, with_text = out.chunk(2)
        latents = scheduler.step(without + GUIDANCE * (with_text - without), timestep, latents).prev_sample
    return latents


@torch.no_grad()
def share_drawn(unet: nn.Module, vae: AutoencoderKL, conditioner, *, prompts: int) -> dict[str, float]:
    """Share of named things drawn, by number of things, on `prompts` held-out scenes each (captions of 77 tokens)."""
    shares = {}
    for count in COUNTS:
        scenes = [random_scene(random.Random(f"unet/validation/{count}/{i}"), count) for i in range(prompts)]
        captions = [caption_of(scene, random.Random(f"words/{count}/{i}")) for i, scene in enumerate(scenes)]
        latents = sample_latents(unet, conditioner([c.text for c in captions]), conditioner([""]), seed=count)
        pictures = ((vae.decode(latents).sample.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
        verdicts = [
            v.drawn for picture, scene in zip(pictures, scenes, strict=True) for v in judge(picture, scene.things)
        ]
        shares[str(count)] = round(float(np.mean(verdicts)), 4)
    return shares


def log_line(folder: Path, config, step: int, loss: float, conditioner, vae, unet: nn.Module) -> None:
    """Append one JSON line to `log.jsonl` in the run's folder."""
    drawn = share_drawn(unet, vae, conditioner, prompts=config.validation_prompts)
    line = {"step": step, "loss": round(loss, 5), "drawn": drawn, "time": time.time()}
    with (folder / "log.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
