"""Image and caption pairs: the shapes world, made as it is needed, or a folder of pictures with a JSON lines file.

Every sample is a function of the seed and its global number, and global batch s is made of numbers s * B to
(s + 1) * B - 1. So one process with 8 pairs and two with 4 see the same batches, and a resumed run the same ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset, Sampler

from debias_sd.captions import join_sentences
from debias_sd.shapes.caption import Caption, length, long_caption, sentence_caption, tag_caption
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import COLOURS, SHAPES, SIZES, Scene, Thing, random_scene

SHORT_LIMIT = 75  # tokens of text in 77 positions


class GlobalBatches(Sampler[list[int]]):
    """The sample numbers of one process, batch after batch: its rows of each global batch, from step `start` on."""

    def __init__(self, batch_size: int, *, rank: int, processes: int, start: int, total: int) -> None:
        self.batch_size, self.rank, self.processes = batch_size, rank, processes
        self.start, self.total = start, total

    def __len__(self) -> int:
        return self.total - self.start

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.start, self.total):
            first = (step * self.processes + self.rank) * self.batch_size
            yield list(range(first, first + self.batch_size))


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

    mean, std = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)

    def __init__(self, *, seed: int, short: bool) -> None:
        self.seed, self.short = seed, short

    def __getitem__(self, number: int) -> dict[str, Any]:
        rng = random.Random(f"{self.seed}/{number}")
        if self.short:
            scene, caption = base_caption(rng)
        else:
            scene = random_scene(rng)
            caption = long_caption(scene, rng)
        named = [thing for things in caption.named for thing in things]
        return {
            "number": number,
            "image": render(scene),
            "text": caption.text,
            "cells": cell_table(scene.things),
            "named": cell_table(named),
            "mentions": mentions(caption),
        }


class FolderPairs(Dataset):
    """Pictures on disk with captions in JSON lines (`file_name` relative to the file, `text`), as `datasets` reads.

    Records without a caption or a file are skipped and counted in `skipped`. An epoch is a permutation of the records
    without the rest that fills no global batch. Item: number, image (uint8 [size, size, 3]), text.
    """

    mean = (0.48145466, 0.4578275, 0.40821073)  # CLIP's own
    std = (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, path: str | Path, *, size: int, seed: int, global_batch: int) -> None:
        path = Path(path)
        path = path / "metadata.jsonl" if path.is_dir() else path
        if not path.is_file():
            raise ValueError(
                f"train_data {path} does not exist; name a JSON lines file with file_name and text on each line, "
                "a folder with metadata.jsonl, or shapes."
            )
        self.records, self.skipped = _read_records(path)
        self.size, self.seed = size, seed
        self.usable = len(self.records) // global_batch * global_batch
        if not self.usable:
            raise ValueError(
                f"train_data {path} has {len(self.records)} usable records ({self.skipped} skipped), one batch of all "
                f"processes needs {global_batch}; lower train_batch_size or check the paths."
            )
        self._epoch, self._order = -1, []

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, self.usable)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, list(range(len(self.records)))
            random.Random(f"{self.seed}/epoch/{epoch}").shuffle(self._order)
        file, text = self.records[self._order[place]]
        return {"number": number, "image": read_image(file, size=self.size), "text": text}


def _read_records(path: Path) -> tuple[list[tuple[Path, str]], int]:
    records, skipped = [], 0
    for line_number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            raise ValueError(f"line {line_number} of {path} is not JSON; write one object per line.") from None
        if not isinstance(record, dict) or not {"file_name", "text"} <= record.keys():
            raise ValueError(f"line {line_number} of {path} lacks file_name or text; write both on each line.")
        file, text = path.parent / str(record["file_name"]), " ".join(str(record["text"] or "").split())
        if text and file.is_file():
            records.append((file, text))
        else:
            skipped += 1
    return records, skipped


def read_image(file: Path, *, size: int) -> np.ndarray:
    """Read a picture as CLIP does: shorter side to `size` (bicubic), centre square; uint8 [size, size, 3]."""
    try:
        with Image.open(file) as opened:
            image = opened.convert("RGB")
    except (OSError, UnidentifiedImageError) as error:
        raise ValueError(f"picture {file} cannot be read ({error}); repair it or drop its line.") from None
    scale = size / min(image.size)
    width, height = (max(size, round(side * scale)) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))
