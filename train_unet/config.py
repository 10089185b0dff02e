"""The settings of a UNet run: one frozen dataclass, read from YAML and the command line."""

from __future__ import annotations

import dataclasses
import difflib
from pathlib import Path
from typing import Any

import yaml


@dataclasses.dataclass(frozen=True)
class UnetConfig:
    """Settings for `python -m train_unet`; names as in Hugging Face's training scripts where they have one."""

    text_encoder: str
    """Folder of the base text encoder (77 positions) that conditions the UNet."""
    output_dir: str
    """Folder for the states, the log and, under `pipeline/`, the finished Stable Diffusion pipeline."""
    vae_only: bool = False
    """Stop after the VAE, which needs no text encoder, so that it can be trained beside the encoders."""
    seed: int = 0
    vae_train_steps: int = 2500
    vae_train_batch_size: int = 32
    vae_learning_rate: float = 2e-3
    decoder_train_steps: int = 600
    """Steps on the VAE's decoder alone, after the whole VAE; the latents do not change any more."""
    max_train_steps: int = 6000
    train_batch_size: int = 128
    learning_rate: float = 1.5e-3
    lr_warmup_steps: int = 200
    adam_weight_decay: float = 0.01
    ema_decay: float = 0.998
    widths: tuple[int, int] = (128, 192)
    """Channels at 6 x 6 and at 3 x 3."""
    scenes_per_count: int = 5000
    """Training scenes for each number of things, 1 to 9."""
    captions_per_scene: int = 2
    checkpointing_steps: int = 500

    def __post_init__(self) -> None:
        object.__setattr__(self, "widths", tuple(self.widths))
        for name in (
            "vae_train_steps",
            "max_train_steps",
            "train_batch_size",
            "scenes_per_count",
            "captions_per_scene",
        ):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} must be a whole number of 1 or more, found {getattr(self, name)!r}.")


def load_config(path: str | None, overrides: dict[str, str]) -> UnetConfig:
    """Read the YAML at `path` (or nothing) and let `overrides` (text values from the command line) replace its keys."""
    if path is not None and not Path(path).is_file():
        raise ValueError(f"no config file at {path}; pass --config a YAML file such as train_unet/configs/shapes.yaml.")
    values: dict[str, Any] = yaml.safe_load(Path(path).read_text()) if path else {}
    values.update({key: yaml.safe_load(value) for key, value in overrides.items()})
    fields = {field.name: field for field in dataclasses.fields(UnetConfig)}
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1)
            hint = f"did you mean {near[0]}" if near else f"the fields are {', '.join(fields)}"
            raise ValueError(f"unknown setting {key!r}; {hint}?")
        if isinstance(fields[key].default, float) and isinstance(values[key], str | int):
            values[key] = float(values[key])  # YAML reads 1e-3 as text
    missing = [key for key in ("text_encoder", "output_dir") if key not in values]
    if missing:
        raise ValueError(f"missing setting {missing[0]!r}; give it in the YAML file or as --{missing[0]}.")
    return UnetConfig(**values)
