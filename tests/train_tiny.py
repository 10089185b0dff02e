"""Runs of the trainer small enough for tests: a one-layer CLIP of the shapes world, a few pairs, a few steps."""

from pathlib import Path
from typing import Any

from train_encoder.__main__ import main
from train_encoder.settings import TrainConfig, make_config

TOWER = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
MODEL = {
    "projection_dim": 16,
    "text_config": TOWER | {"max_position_embeddings": 77, "projection_dim": 16},
    "vision_config": TOWER | {"image_size": 48, "patch_size": 16, "projection_dim": 16},
}
START = {"recipe": "short-only", "model_config": MODEL, "init_std": {"token_embeddings": 0.5, "text_positions": 0.3}}
SMALL = {"max_train_steps": 3, "lr_warmup_steps": 1, "learning_rate": 1e-3, "train_batch_size": 8, "components": 4}


def tiny_settings(folder: Path, **settings: Any) -> dict[str, Any]:
    """Plain settings of a small run into `folder`, from scratch unless a pretrained model is named."""
    start = {} if "pretrained_model_name_or_path" in settings else START
    return start | SMALL | {"output_dir": str(folder)} | settings


def tiny_config(folder: Path, **settings: Any) -> TrainConfig:
    return make_config(tiny_settings(folder, **settings))


def arguments(settings: dict[str, Any]) -> list[str]:
    """The command line that gives `settings`; JSON is YAML, so dicts go through."""
    import json

    out = []
    for name, value in settings.items():
        out += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return out


def train_tiny(folder: Path, **settings: Any) -> Path:
    """Train through the command line's own entry, in this process; returns the folder."""
    assert main(arguments(tiny_settings(folder, **settings))) == 0
    return folder
