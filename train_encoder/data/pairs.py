"""Pairs of image and caption: the shapes world, made as it is needed, or records on disk.

Every sample is a function of the seed and its global number, and global batch s is made of numbers s * B to
(s + 1) * B - 1. So one process with 8 pairs and two with 4 see the same batches, and a resumed run the same ones.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from torch.utils.data import Dataset, Sampler

from debias_sd.datasets.listing import NO_CAPTION
from debias_sd.datasets.names import open_records
from debias_sd.datasets.pictures import PictureFault, picture_state, read_rgb
from debias_sd.datasets.records import Fault, Records, describe_counts
from debias_sd.datasets.shards import Shards
from debias_sd.preprocessing import Preprocessing
from debias_sd.shapes.render import SIDE
from train_encoder.data.shapes import ShapesPairs

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig

LOOKED_AT = 100_000  # files whose state is asked for when kept features are looked up: a second on a disk


class Pairs(Protocol):
    """What a run asks of its data, whose items are made by number."""

    preprocessing: Preprocessing  # of its pictures
    features: Any  # image features by number, in place of pictures; None: pictures
    records: Records | None  # what lies on disk
    fault_limit: int

    def __getitem__(self, number: int) -> dict[str, Any]: ...

    def picture(self, number: int) -> np.ndarray:
        """Picture `number`, uint8 [size, size, 3]; PictureFault when it cannot be read."""
        ...

    def pictures(self, samples: int) -> int:
        """How many pictures `samples` samples show."""
        ...

    def identity(self) -> Iterator[str]:
        """What tells these pictures from others."""
        ...


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
        self.features: Any = None

    def __getitem__(self, number: int) -> dict[str, Any]:
        epoch, place = divmod(number, self.usable)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._order_of(epoch)
        faults: list[Fault] = []
        item: dict[str, Any] = {
            "key": "",
            "image": np.zeros((self.preprocessing.size, self.preprocessing.size, 3), np.uint8),
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
        return self.preprocessing.square(read_rgb(self.records[index].image))

    def pictures(self, samples: int) -> int:
        return len(self.records)

    def identity(self) -> Iterator[str]:
        """What tells these pictures from others: size, and of every record its key, where its picture lies, and how
        that file is now: of more than `LOOKED_AT` records, of so many evenly spread over them."""
        whole = "" if self.preprocessing.shortest == self.preprocessing.size else f", {self.preprocessing}"
        yield f"pictures of {self.preprocessing.size}{whole}"
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
        rng = epoch_rng(self.seed, epoch)
        if isinstance(self.records, Shards):
            return order_by_blocks(self.records.blocks, rng)
        return rng.permutation(len(self.records)).astype(np.int32)


def epoch_rng(seed: int, epoch: int) -> np.random.RandomState:
    """What orders an epoch. NumPy promises that RandomState draws the same in every version, and only of that."""
    digest = hashlib.sha256(f"{seed}/epoch/{epoch}".encode()).digest()
    return np.random.RandomState(np.frombuffer(digest, np.uint32))


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


def open_pairs(config: TrainConfig, preprocessing: Preprocessing, *, processes: int) -> Pairs:
    """The data of a run, pictures on disk read by `preprocessing`. ValueError for what the user can mend."""
    if config.train_data == "shapes":
        if preprocessing.size != SIDE:
            raise ValueError(
                f"train_data is shapes, whose pictures are {SIDE} x {SIDE}, and the initial checkpoint reads "
                f"{preprocessing.size} x {preprocessing.size}; name pictures on disk, or a checkpoint of {SIDE}."
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
