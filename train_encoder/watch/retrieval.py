"""Retrieval on held-out pairs while a run trains: full captions, the summary moved or dropped, and short captions.

The paper's protocol (arXiv 2602.22419): normalised features, dot product, R@1 of both directions in percent. Training
on long captions can cost what CLIP knows of short ones; that is why they are measured too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from debias_sd.measure.retrieval.ranks import retrieval_ranks, scores_of
from train_encoder.engine import autocast
from train_encoder.watch.heldout import PROBED, HeldOut

if TYPE_CHECKING:
    from train_encoder.run import Run

BATCH = 32
ERRORS = 2.0  # standard errors of the first measurement that a fall must exceed to be told


@torch.no_grad()
def evaluate(run: Run, heldout: HeldOut) -> dict[str, float]:
    """R@1 in percent of each probe and of the short captions, text to image (t2i) and image to text (i2t).

    Raises StopAsked where SIGTERM comes between two batches.
    """
    was_training = run.towers.training
    run.towers.eval()
    try:
        images = _image_features(run, heldout.pictures)
        same = heldout.short_pictures is heldout.pictures
        short_images = images if same else _image_features(run, heldout.short_pictures)
        pairs = {name: (images, texts) for name, texts in heldout.texts.items()}
        pairs["short"] = (short_images, heldout.short_texts)
        row: dict[str, float] = {"step": run.step}
        for name, (pictures, texts) in pairs.items():
            ranks = retrieval_ranks(pictures, _text_features(run, texts), np.arange(len(texts)))
            row |= {f"{name}_{way}_r1": scores_of(getattr(ranks, way))["r1"] for way in ("t2i", "i2t")}
        return row
    finally:
        run.towers.train(was_training)


def _image_features(run: Run, pictures: list[np.ndarray]) -> np.ndarray:
    found = []
    for start in range(0, len(pictures), BATCH):
        pixels = run.data.preprocessing.normalise(pictures[start : start + BATCH])
        run.stop.check()
        with autocast(run.accelerator, run.config):
            found.append(_normalised(run.towers.image_features(pixels.to(run.accelerator.device))))
    return np.concatenate(found)


def _text_features(run: Run, texts: list[str]) -> np.ndarray:
    ids = run.texts.ids(texts)
    found = []
    for rows in ids.split(BATCH):
        run.stop.check()
        with autocast(run.accelerator, run.config):
            found.append(_normalised(run.towers.text_features(rows.to(run.accelerator.device))))
    return np.concatenate(found)


def _normalised(features: torch.Tensor) -> np.ndarray:
    return F.normalize(features.float(), dim=-1).cpu().numpy()


def describe(row: dict[str, float]) -> str:
    """One line: R@1 text to image and image to text of each probe."""
    parts = (f"{name} {row[f'{name}_t2i_r1']:.1f}/{row[f'{name}_i2t_r1']:.1f}" for name in (*PROBED, "short"))
    return f"step {row['step']}: R@1 t2i/i2t {', '.join(parts)}"


def fall_of_short(first: dict[str, float], row: dict[str, float], *, pairs: int) -> str | None:
    """A sentence when short-caption retrieval fell by more than measurement error since `first`, else None."""
    before, now = (each["short_t2i_r1"] for each in (first, row))
    error = 100 * math.sqrt(max(before / 100 * (1 - before / 100), 1 / pairs) / pairs)
    if before - now <= ERRORS * error:
        return None
    return (
        f"short captions find their pictures less often than at step {first['step']}: R@1 fell from {before:.1f} to "
        f"{now:.1f} on {pairs} pairs; a smaller learning_rate or a larger short_weight holds them."
    )
