"""Runs of `train_unet` small enough for tests: 16 and 32 channels, four scenes a number of things, four steps."""

from pathlib import Path
from typing import Any

from train_unet.settings import UnetConfig

SMALL: dict[str, Any] = {
    "widths": (16, 32),
    "max_train_steps": 4,
    "train_batch_size": 4,
    "learning_rate": 1e-3,
    "lr_warmup_steps": 1,
    "scenes_per_count": 4,
    "checkpointing_steps": 2,
    "validation_prompts": 1,
}


def tiny_unet_config(folder: Path, **settings: Any) -> UnetConfig:
    return UnetConfig(**{"text_encoder": "unused", "output_dir": str(folder)} | SMALL | settings)
