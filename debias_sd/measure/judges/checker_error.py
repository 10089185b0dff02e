"""How often the checker errs: on rendered scenes, under noise, and through the pipeline's VAE.

These are the ceiling of every fidelity score (`missed_percent`) and the trust in its "drawn" (`false_percent`: near
misses, a thing with one wrong property, that the checker lets pass).
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from debias_sd.shapes.render import read_picture, render
from debias_sd.shapes.scene import COLOURS, SHAPES, SIZES, Scene, Thing

NOISE = 10.0  # standard deviation of the noise test, in 0..255


def near_miss(thing: Thing, rng: random.Random) -> Thing:
    """`thing` with its colour, its shape or its size changed."""
    part, values = rng.choice([("colour", tuple(COLOURS)), ("shape", SHAPES), ("size", SIZES)])
    other = rng.choice([value for value in values if value != getattr(thing, part)])
    return dataclasses.replace(thing, **{part: other})


def error_rates(images: np.ndarray, scenes: Sequence[Scene], *, seed: int) -> dict[str, Any]:
    """Percent of things present that are missed, of near misses let pass, and of empty cells read as filled."""
    missed, passed, filled = [], [], []
    rng = random.Random(f"eval/{seed}/near-misses")
    for image, scene in zip(images, scenes, strict=True):
        readings = read_picture(image)
        for thing in scene.things:
            missed.append(readings[thing.cell].thing != thing)
            passed.append(readings[thing.cell].thing == near_miss(thing, rng))
        taken = {thing.cell for thing in scene.things}
        filled += [readings[cell].thing is not None for cell in range(9) if cell not in taken]
    return {
        "missed_percent": float(100 * np.mean(missed)),
        "false_percent": float(100 * np.mean(passed)),
        "filled_percent": float(100 * np.mean(filled)) if filled else None,
        "things": len(missed),
        "empty_cells": len(filled),
    }


@torch.inference_mode()
def through_vae(images: np.ndarray, vae: torch.nn.Module, *, batch: int = 50) -> np.ndarray:
    """Pictures uint8 [n, 48, 48, 3] encoded (mode of the posterior) and decoded again by an `AutoencoderKL`."""
    out = []
    for start in range(0, len(images), batch):
        pixels = torch.from_numpy(images[start : start + batch]).permute(0, 3, 1, 2).to(vae.dtype).div(127.5).sub(1)
        decoded = vae.decode(vae.encode(pixels).latent_dist.mode()).sample
        out.append(decoded.clamp(-1, 1).add(1).mul(127.5).round().byte().permute(0, 2, 3, 1).numpy())
    return np.concatenate(out)


def with_noise(images: np.ndarray, *, deviation: float, seed: int) -> np.ndarray:
    """Pictures with independent Gaussian noise on every pixel and channel."""
    noise = np.random.default_rng(seed).normal(0, deviation, images.shape)
    return np.clip(np.rint(images + noise), 0, 255).astype(np.uint8)


def measure_checker(scenes: Sequence[Scene], vae: torch.nn.Module, *, seed: int) -> dict[str, Any]:
    """Error rates on `scenes`: `rendered`, `noise_10`, and `vae` (rendered, encoded, decoded)."""
    rendered = np.stack([render(scene) for scene in scenes])
    pictures = {
        "rendered": rendered,
        f"noise_{NOISE:.0f}": with_noise(rendered, deviation=NOISE, seed=seed),
        "vae": through_vae(rendered, vae),
    }
    return {name: error_rates(images, scenes, seed=seed) for name, images in pictures.items()}
