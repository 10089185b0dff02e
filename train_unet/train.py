"""Train the UNet: the loop of Stable Diffusion's own training at the embedded world's size.

What it is trained on is made once, since encoding the same scenes and captions anew in every step would cost about half
as much as the UNet itself. One step: scenes' latents with noise, and the hidden states of their captions -> UNet ->
v-prediction loss. One caption in ten is empty, for classifier-free guidance. Timesteps lean to high noise, where the
layout is decided. The weights that are kept are an exponential moving average.
"""

from __future__ import annotations

import copy
import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from debias_sd.run_state import check_finite
from debias_sd.shapes.render import judge, render
from debias_sd.shapes.scene import random_scene
from train_unet.models import DIVERGED, caption_of, draw_scene, load_state, most_things, new_scheduler, save_state
from train_unet.settings import UnetConfig

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


GUIDANCE, STEPS = 3.0, 20
SHOWN_COUNTS = (1, 3, 5, 7, 9)


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
    for count in SHOWN_COUNTS:
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


UNCONDITIONAL = 0.1  # share of empty captions


class Average:
    """Exponential moving average of a model's weights, with a warm-up so that early steps do not weigh it down."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.model.parameters()), list(model.parameters()), 1 - decay)


def learning_rate_at(step: int, config: UnetConfig) -> float:
    """Linear warm-up, then constant, then linear to 0 over the last quarter."""
    warm = min(1.0, (step + 1) / config.lr_warmup_steps)
    return config.learning_rate * min(warm, (config.max_train_steps - step) / (0.25 * config.max_train_steps))


def make_batch(step: int, pool: dict[str, Tensor], config: UnetConfig) -> tuple[Tensor, Tensor]:
    """Latents and hidden states of one step, from the seed and the step alone (so that a run can resume anywhere)."""
    rng = random.Random(f"unet/{config.seed}/step/{step}")
    most = most_things(step / config.max_train_steps)
    scenes, captions = pool["states"].shape[1:3]
    latents, states = [], []
    for _ in range(config.train_batch_size):
        count = max(rng.randint(1, most), rng.randint(1, most))  # leans to the curriculum's present end
        index = rng.randrange(scenes)
        latents.append(pool["latents"][count - 1, index])
        empty = rng.random() < UNCONDITIONAL
        states.append(pool["empty"] if empty else pool["states"][count - 1, index, rng.randrange(captions)])
    return torch.stack(latents).float(), torch.stack(states).float()


def denoising_loss(unet, scheduler, latents: Tensor, states: Tensor, generator: torch.Generator) -> Tensor:
    """Mean squared error of the predicted v at random timesteps that lean to high noise (mean 0.62 of the way)."""
    noise = torch.randn(latents.shape, generator=generator)
    last = scheduler.config.num_train_timesteps - 1
    timesteps = (torch.rand(len(latents), generator=generator) ** 0.6 * last).round().long()
    noisy = scheduler.add_noise(latents, noise, timesteps)
    target = scheduler.get_velocity(latents, noise, timesteps)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = unet(noisy, timesteps, encoder_hidden_states=states).sample
    return nn.functional.mse_loss(out.float(), target)


def train_unet(
    config: UnetConfig, conditioner: Conditioner, vae: AutoencoderKL, unet: UNet2DConditionModel, folder: Path
) -> tuple[UNet2DConditionModel, float | None]:
    """Train `unet`, resuming from `folder`; return the averaged UNet and the mean loss of the last 100 steps.

    The loss is None when every step had been made before.
    """
    pool = make_pool(config, vae, conditioner, folder / "pool.safetensors")
    scheduler = new_scheduler()
    # At these sizes the plain processor's bf16 backward is far quicker than scaled_dot_product_attention's on a CPU.
    unet.set_attn_processor(AttnProcessor())
    unet.train()
    average = Average(unet, config.ema_decay)
    optimizer = torch.optim.AdamW(
        unet.parameters(), lr=config.learning_rate, weight_decay=config.adam_weight_decay, betas=(0.9, 0.99), fused=True
    )
    parts = {"model": unet, "average": average.model, "optimizer": optimizer}
    state = folder / "unet-state.pt"
    first = load_state(state, parts)
    recent: list[float] = []
    bar = tqdm(range(first, config.max_train_steps), initial=first, total=config.max_train_steps, desc="UNet")
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, config)
        latents, states = make_batch(step, pool, config)
        generator = torch.Generator().manual_seed(config.seed * 1_000_003 + step)
        loss = denoising_loss(unet, scheduler, latents, states, generator)
        if not math.isfinite(loss.item()):
            raise ValueError(f"the UNet's loss is {loss.item()} at step {step + 1}; {DIVERGED}.")
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
        optimizer.step()
        average.update(unet, step)
        recent = [*recent[-99:], loss.item()]
        bar.set_postfix(loss=f"{sum(recent) / len(recent):.4f}", refresh=False)
        if (step + 1) % config.checkpointing_steps == 0:
            save_state(state, step + 1, parts)
            log_line(folder, config, step + 1, sum(recent) / len(recent), conditioner, vae, average.model)
    average.model.set_attn_processor(AttnProcessor2_0())
    return average.model.eval(), sum(recent) / len(recent) if recent else None
