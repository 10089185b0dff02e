"""Train the UNet: the loop of Stable Diffusion's own training at the embedded world's size.

One step: scenes' latents with noise, and the hidden states of their captions (`pool.py`) -> UNet -> v-prediction loss.
One caption in ten is empty, for classifier-free guidance. Timesteps lean to high noise, where the layout is decided.
The weights that are kept are an exponential moving average.
"""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0
from torch import Tensor, nn
from tqdm import tqdm

from train_unet.config import UnetConfig
from train_unet.pool import Conditioner, make_pool
from train_unet.progress import log_line
from train_unet.state import DIVERGED, load_state, save_state
from train_unet.unet import most_things, new_scheduler

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
