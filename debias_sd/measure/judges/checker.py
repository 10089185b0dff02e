"""The embedded world's exact checker as a judge, and how often it errs.

It reads the things that a sentence names from pixels alone. Its errors, on rendered scenes, under noise and through the
pipeline's VAE, are the ceiling of every fidelity score (`missed_percent`) and the trust in its "drawn"
(`false_percent`: near misses, a thing with one wrong property, that it lets pass).
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from debias_sd.measure.judges import DRAWN, MISSING, UNSURE, Thresholds, Verdict, unjudged
from debias_sd.shapes.caption import read_background, read_sentence
from debias_sd.shapes.render import CellReading, Finding, look_for, read_picture, render
from debias_sd.shapes.scene import CELLS, COLOURS, SHAPES, SIZES, Scene, Thing

NO_THING = "the sentence names no thing with size, colour, shape and place"
NOISE = 10.0  # standard deviation of the noise test, in 0..255


@dataclasses.dataclass(frozen=True)
class CheckerJudge:
    """Judges pictures of the embedded world (48 x 48 pixels or whole multiples) and sentences in its words."""

    thresholds: Thresholds = Thresholds(1.0, 1.0, "exact")
    name: str = "checker"
    meaning: str = "share of the sentence's things whose cell shows their colour, shape and size"

    def judge(self, image: Image.Image, sentences: Sequence[str]) -> list[Verdict]:
        """Drawn where all things of the sentence are; unjudged where it names none completely.

        Unsure where a thing is not there and its cell looks like no tile at all; else `1 of 2` where some things are.
        """
        cells = read_picture(np.asarray(image.convert("RGB")))
        return [self._verdict(cells, sentence) for sentence in sentences]

    def _verdict(self, cells: Sequence[CellReading], sentence: str) -> Verdict:
        things = read_sentence(sentence)
        if not things:
            return unjudged(sentence, NO_THING)
        findings = look_for(cells, things)
        lost = [finding for finding in findings if not finding.drawn]
        count = len(things) - len(lost)
        if not lost:
            mark = DRAWN
        elif any(finding.unsure for finding in lost):
            mark = UNSURE
        else:
            mark = f"{count} of {len(things)}" if count else MISSING
        words = "; ".join(map(_in_words, lost))
        return Verdict(sentence, count / len(things), mark, found=words, aspects=_aspects(findings))

    def unnamed(self, image: Image.Image, sentences: Sequence[str]) -> tuple[int, int]:
        """How many cells no sentence names, and in how many of them something was drawn."""
        named = {thing.cell for sentence in sentences for thing in read_sentence(sentence)}
        cells = read_picture(np.asarray(image.convert("RGB")))
        others = [reading.thing is not None for cell, reading in enumerate(cells) if cell not in named]
        return len(others), sum(others)

    def background(self, image: Image.Image, sentences: Sequence[str]) -> bool | None:
        """Whether most cells have the background that the sentences name; None where they name none."""
        named = read_background(sentences)
        if named is None:
            return None
        found = Counter(reading.background for reading in read_picture(np.asarray(image.convert("RGB"))))
        return found.most_common(1)[0][0] == named

    def describe(self) -> dict[str, Any]:
        return {"kind": "checker", "meaning": self.meaning, "thresholds": dataclasses.asdict(self.thresholds)}


def _aspects(findings: Sequence[Finding]) -> dict[str, float]:
    """Shares of the things in whose cell is anything, and anything of their colour, of their shape."""
    there = [(finding.thing, finding.found.thing) for finding in findings]
    right = {part: [f is not None and getattr(f, part) == getattr(t, part) for t, f in there]
             for part in ("colour", "shape")}  # fmt: skip
    right["anything"] = [found is not None for _, found in there]
    return {name: sum(values) / len(values) for name, values in right.items()}


def _in_words(finding: Finding) -> str:
    thing = finding.found.thing
    there = "nothing" if thing is None else f"a {thing.size} {thing.colour} {thing.shape}"
    return f"{there} in the {CELLS[finding.thing.cell]}"


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
