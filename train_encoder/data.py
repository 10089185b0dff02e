"""Image and caption pairs: the shapes world, made as it is needed, or records on disk.

Every sample is a function of the seed and its global number, and global batch s is made of numbers s * B to
(s + 1) * B - 1. So one process with 8 pairs and two with 4 see the same batches, and a resumed run the same ones.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset, Sampler

from debias_sd.captions import join_sentences
from debias_sd.datasets.faults import Fault
from debias_sd.datasets.listing import NO_CAPTION
from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import PictureFault, picture_state, read_rgb
from debias_sd.datasets.records import Records, describe_counts
from debias_sd.datasets.shards import Shards
from debias_sd.measure.features.preprocessing import Preprocessing
from debias_sd.shapes.caption import Caption, length, long_caption, sentence_caption, tag_caption
from debias_sd.shapes.render import SIDE, render
from debias_sd.shapes.scene import COLOURS, SHAPES, SIZES, Scene, Thing, random_scene

if TYPE_CHECKING:
    from train_encoder.features import ImageFeatures
    from train_encoder.settings import TrainConfig

SHORT_LIMIT = 75  # tokens of text in 77 positions
LOOKED_AT = 100_000  # files whose state is asked for when kept features are looked up: a second on a disk


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
        self.features: ImageFeatures | None = None

    def _draw(self, number: int) -> tuple[Scene, Caption]:
        rng = random.Random(f"{self.seed}/{number}")
        if self.short:
            return base_caption(rng)
        scene = random_scene(rng)
        return scene, long_caption(scene, rng)

    def picture(self, number: int) -> np.ndarray:
        """The picture of a number, uint8 [48, 48, 3]."""
        return render(self._draw(number)[0])

    def identity(self) -> Iterator[str]:
        """What tells these pictures from others."""
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


class RecordPairs(Dataset):
    """Pictures on disk with a caption each, of any reader of `debias_sd.datasets`.

    An epoch is a permutation of the records without the rest that fills no global batch. A record whose picture cannot
    be read, or that has no caption after all, is replaced by another of the same epoch, far from it so that no batch
    has a picture twice: both depend on the seed, the number and the disk alone, never on the number of processes.

    Item: number, image (uint8 [size, size, 3]), text, short (the record's own short caption or None), faults (what
    had to be replaced).
    """

    def __init__(
        self,
        records: Records,
        *,
        name: str,
        preprocessing: Preprocessing,
        seed: int,
        global_batch: int,
        fault_limit: int,
    ) -> None:
        self.records, self.preprocessing, self.seed = records, preprocessing, seed
        self.size, self.mean, self.std = preprocessing.size, preprocessing.mean, preprocessing.std
        self.usable = len(records) // global_batch * global_batch
        if not self.usable:
            skipped = describe_counts(records.left_out) or "none"
            raise ValueError(
                f"train_data {name} has {len(records)} usable records ({skipped} skipped), one batch of all "
                f"processes needs {global_batch}; lower train_batch_size or check the paths."
            )
        # Whoever tries more than this has found more faults than a run may have, and stops before it uses the item.
        self.fault_limit = min(fault_limit, len(records) - 1)
        self._stride = _stride(len(records))
        self._epoch, self._order = -1, np.zeros(0, np.int32)
        self.features: ImageFeatures | None = None

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, self.usable)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        faults: list[Fault] = []
        item: dict[str, Any] = {
            "key": "",
            "image": np.zeros((self.size, self.size, 3), np.uint8),
            "text": "",
            "short": None,
        }
        for attempt in range(self.fault_limit + 1):
            index = int(self._order[(place + attempt * self._stride) % len(self._order)])
            record = self.records[index]
            try:
                item = self._read(index, number)
                break
            except PictureFault as fault:
                faults.append((index, record.key, fault.kind))
        return {"number": number} | item | {"faults": faults}

    def picture(self, index: int) -> np.ndarray:
        """The picture of record `index`, uint8 [size, size, 3]; PictureFault when it cannot be read."""
        return self.preprocessing.square(read_rgb(self.records[index].image))

    def identity(self) -> Iterator[str]:
        """What tells these pictures from others: size, and of every record its key, where its picture lies, and how
        that file is now: of more than `LOOKED_AT` records, of so many evenly spread over them."""
        whole = "" if self.preprocessing.shortest == self.size else f", {self.preprocessing}"
        yield f"pictures of {self.size}{whole}"
        every = -(-len(self.records) // LOOKED_AT)
        for index in range(len(self.records)):
            record = self.records[index]
            state = f"\t{picture_state(record.image)}" if index % every == 0 else ""
            yield f"{record.key}\t{record.image}{state}"

    def _read(self, index: int, number: int) -> dict[str, Any]:
        record = self.records[index]
        captions = [text for text in record.captions if text]
        if not captions:
            raise PictureFault(NO_CAPTION, record.image)
        text = captions[0] if len(captions) == 1 else random.Random(f"{self.seed}/caption/{number}").choice(captions)
        if self.features is None:
            picture = {"image": self.preprocessing.square(read_rgb(record.image))}
        else:
            picture = {"image_features": self.features[index]}
        return {"key": record.key} | picture | {"text": " ".join(text.split()), "short": record.short}

    def _order_of(self, epoch: int) -> np.ndarray:
        digest = hashlib.sha256(f"{self.seed}/epoch/{epoch}".encode()).digest()
        # NumPy promises that RandomState draws the same in every version, and only of that.
        rng = np.random.RandomState(np.frombuffer(digest, np.uint32))
        if isinstance(self.records, Shards):
            return order_by_blocks(self.records.blocks, rng)
        return rng.permutation(len(self.records)).astype(np.int32)


def order_by_blocks(blocks: np.ndarray, rng: np.random.RandomState, *, together: int = 16) -> np.ndarray:
    """A permutation that mixes the records of `together` blocks (shards) at a time: int32 [records].

    Shards come in random order. At any time all processes read from the same few, which a shared disk then holds.
    """
    starts = np.concatenate([[0], np.cumsum(blocks)])
    shards = rng.permutation(len(blocks))
    parts = []
    for first in range(0, len(shards), together):
        chosen = [np.arange(starts[n], starts[n + 1], dtype=np.int32) for n in shards[first : first + together]]
        parts.append(rng.permutation(np.concatenate(chosen)))
    return np.concatenate(parts)


def _stride(count: int) -> int:
    """A step of about 0.618 `count` that comes by every record before it comes by one again."""
    stride = max(1, round(0.618 * count))
    while math.gcd(stride, count) != 1:
        stride += 1
    return stride


def open_pairs(config: TrainConfig, preprocessing: Preprocessing, *, processes: int) -> ShapesPairs | RecordPairs:
    """The data of a run, pictures on disk read by `preprocessing`; ValueError for what the user can mend."""
    if config.train_data == "shapes":
        if preprocessing.size != SIDE:
            raise ValueError(
                f"train_data is shapes, whose pictures are {SIDE} x {SIDE}, and the pretrained model reads "
                f"{preprocessing.size} x {preprocessing.size}; name pictures on disk, or start from a model of {SIDE}."
            )
        return ShapesPairs(seed=config.seed, short=config.recipe == "short-only")
    records = open_records(
        config.train_data,
        image_root=config.train_data_dir,
        image_column=config.image_column,
        caption_column=config.caption_column,
        short_caption_column=config.short_caption_column,
        skip_missing=config.skip_missing_images,
    )
    return RecordPairs(
        records,
        name=config.train_data,
        preprocessing=preprocessing,
        seed=config.seed,
        global_batch=config.train_batch_size * processes,
        fault_limit=config.data_fault_limit,
    )
