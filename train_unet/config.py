"""The settings of a UNet run: one frozen dataclass, read from YAML and the command line."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
from pathlib import Path
from typing import Any

import yaml

from debias_sd.text_files import read_text

KINDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
KINDS["tuple[int, int]"] = "two whole numbers, such as [64, 112],"
POSITIVE = (
    *("vae_train_steps", "vae_train_batch_size", "vae_learning_rate", "max_train_steps", "train_batch_size"),
    *("learning_rate", "lr_warmup_steps", "scenes_per_count", "captions_per_scene", "checkpointing_steps"),
    "validation_prompts",
)


@dataclasses.dataclass(frozen=True)
class UnetConfig:
    """Settings for `python -m train_unet`; names as in Hugging Face's training scripts where they have one."""

    text_encoder: str
    """Folder of the base text encoder (77 positions) that conditions the UNet."""
    output_dir: str
    """Folder for the states, the log and, under `pipeline/`, the finished Stable Diffusion pipeline."""
    overwrite_output_dir: bool = False
    """Delete what an earlier run wrote to output_dir, and train anew."""
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
    validation_prompts: int = 24
    """Held-out scenes for each number of things that are drawn at every checkpoint and at the end."""

    def __post_init__(self) -> None:
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed are numbers above 0; correct it.")
        if self.decoder_train_steps < 0 or self.adam_weight_decay < 0:
            name = "decoder_train_steps" if self.decoder_train_steps < 0 else "adam_weight_decay"
            raise ValueError(f"{name} is {getattr(self, name)}, allowed are numbers from 0; correct it.")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay is {self.ema_decay}, allowed are numbers from 0 to below 1; correct it.")
        if any(width < 1 or width % 16 for width in self.widths):
            raise ValueError(f"widths are {list(self.widths)}, allowed are two multiples of 16; correct them.")

    def vae_settings(self) -> dict[str, Any]:
        """What decides the VAE that a run trains."""
        names = [field.name for field in dataclasses.fields(self) if field.name.startswith(("vae_", "decoder_"))]
        return {name: getattr(self, name) for name in ["seed", *names] if name != "vae_only"}

    def unet_settings(self) -> dict[str, Any]:
        """What decides the UNet beside the VAE and the text encoder; not where and how often it is looked at."""
        others = ("text_encoder", "output_dir", "overwrite_output_dir", "vae_only")
        others += ("checkpointing_steps", "validation_prompts")
        values = dataclasses.asdict(self) | {"widths": list(self.widths)}
        return {name: value for name, value in values.items() if name not in {*others, *self.vae_settings()}}


def _convert(name: str, value: Any, kind: str) -> Any:
    """Bring `value` to the field's type `kind`; YAML reads 1e-3 as text, and JSON-like lists stand for tuples."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if kind == "str" and isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    if (kind == "int" and is_whole) or (kind == "bool" and isinstance(value, bool)):
        return value
    if kind == "float" and (is_whole or isinstance(value, float | str)):
        with contextlib.suppress(ValueError):
            if math.isfinite(float(value)):
                return float(value)
    is_list = isinstance(value, list | tuple) and len(value) == 2
    if kind.startswith("tuple") and is_list and all(type(width) is int for width in value):
        return tuple(value)
    raise ValueError(f"{name} is {value!r}, a value of type {KINDS[kind]} is needed; correct it.")


def read_yaml(text: str, source: str) -> Any:
    """The value that `text` says in YAML; ValueError names `source` when it is not YAML."""
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{source} is not YAML ({' '.join(str(error).split())}); correct it.") from None


def load_config(path: str | None, overrides: dict[str, str]) -> UnetConfig:
    """Read the YAML at `path` (or nothing) and let `overrides` (text values from the command line) replace its keys."""
    if path is not None and not Path(path).is_file():
        raise ValueError(f"no config file at {path}; pass --config a YAML file such as train_unet/configs/shapes.yaml.")
    values = read_yaml(read_text(path, what="config file"), f"config file {path}") or {} if path else {}
    if not isinstance(values, dict):
        raise ValueError(f"config file {path} holds a {type(values).__name__}, lines of `key: value` are needed.")
    values |= {key: read_yaml(value, f"the value of --{key}") for key, value in overrides.items()}
    kinds = {field.name: field.type for field in dataclasses.fields(UnetConfig)}
    for key in values:
        if key not in kinds:
            near = difflib.get_close_matches(str(key), list(kinds), n=1, cutoff=0.0)[0]
            raise ValueError(f"unknown setting {key!r}; the nearest is {near!r} (train_unet/config.py lists all).")
    missing = [key for key in ("text_encoder", "output_dir") if key not in values]
    if missing:
        raise ValueError(f"missing setting {missing[0]!r}; give it in the YAML file or as --{missing[0]}.")
    return UnetConfig(**{key: _convert(key, value, kinds[key]) for key, value in values.items()})
