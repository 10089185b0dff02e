"""Pairs of the shapes world, made as they are needed: every one is a function of the seed and its number."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL.Image import Resampling
from torch.utils.data import Dataset

from debias_sd.preprocessing import HALF, Preprocessing
from debias_sd.sentences import join_sentences
from debias_sd.shapes.caption import Caption, length, long_caption, sentence_caption, tag_caption
from debias_sd.shapes.render import SIDE, render
from debias_sd.shapes.scene import COLOURS, SHAPES, SIZES, Scene, Thing, random_scene

SHORT_LIMIT = 75  # tokens of text in 77 positions


def thing_row(thing: Thing) -> tuple[int, int, int]:
    """Colour, shape and size of `thing` as numbers from 1 (0 stands for no thing)."""
    return (list(COLOURS).index(thing.colour) + 1, SHAPES.index(thing.shape) + 1, SIZES.index(thing.size) + 1)


def cell_table(things: tuple[Thing, ...] | list[Thing]) -> np.ndarray:
    """What stands in each cell: int64 [9, 3] of colour, shape and size from 1, zeros where there is nothing."""
    table = np.zeros((9, 3), dtype=np.int64)
    for thing in things:
        table[thing.cell] = thing_row(thing)
    return table


def mentions(caption: Caption) -> list[tuple[int, Thing]]:
    """Where the caption has finished naming one thing: (number of characters up to there, thing).

    A summary names two things at once and is left out: its last token cannot stand for either alone.
    """
    found, end = [], 0
    for sentence, named in zip(caption.sentences, caption.named, strict=True):
        end += len(sentence)
        if len(named) == 1:
            found.append((end, named[0]))
        end += 1
    return found


def base_caption(rng: random.Random) -> tuple[Scene, Caption]:
    """A scene and a caption of at most 77 tokens: tags, plain sentences, or the opening of a long caption."""
    style = rng.randrange(3)
    if style == 0:
        scene = random_scene(rng, rng.randint(1, 9))
        return scene, tag_caption(scene, rng)
    if style == 1:
        scene = random_scene(rng, rng.randint(1, 6))
        return scene, sentence_caption(scene, rng)
    scene = random_scene(rng)
    caption = long_caption(scene, rng)
    fitting = 1
    while length(join_sentences(caption.sentences[: fitting + 1])) <= SHORT_LIMIT:
        fitting += 1
    count = rng.randint(1, fitting)
    return scene, Caption(caption.sentences[:count], caption.named[:count])


class ShapesPairs(Dataset):
    """Pictures of the shapes world with a caption each: long ones, or the base's short ones (`short=True`).

    Item: number, image (uint8 [48, 48, 3]), text, cells and named (int64 [9, 3]: what the picture shows, and the part
    of it that the caption names), mentions (see `mentions`).
    """

    preprocessing = Preprocessing(SIDE, SIDE, int(Resampling.BICUBIC), HALF, HALF, "the shapes world's own")
    records, fault_limit = None, 0

    def __init__(self, *, seed: int, short: bool) -> None:
        self.seed, self.short = seed, short
        self.features: Any = None

    def _draw(self, number: int) -> tuple[Scene, Caption]:
        rng = random.Random(f"{self.seed}/{number}")
        if self.short:
            return base_caption(rng)
        scene = random_scene(rng)
        return scene, long_caption(scene, rng)

    def picture(self, number: int) -> np.ndarray:
        return render(self._draw(number)[0])

    def pictures(self, samples: int) -> int:
        return samples

    def identity(self) -> Iterator[str]:
        yield f"shapes, seed {self.seed}, short {self.short}"

    def __getitem__(self, number: int) -> dict[str, Any]:
        scene, caption = self._draw(number)
        named = [thing for things in caption.named for thing in things]
        return {
            "number": number,
            **({"image": render(scene)} if self.features is None else {"image_features": self.features[number]}),
            "text": caption.text,
            "cells": cell_table(scene.things),
            "named": cell_table(named),
            "mentions": mentions(caption),
        }
