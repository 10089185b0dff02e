"""A pool: the pictures of a set that can be read, all their captions, and everything that was not as it should be."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping

import numpy as np

from debias_sd.datasets.records import ListedRecords, Pool, Records, describe_counts, pool_difference
from debias_sd.report import hash_texts

NO_TEXT = "caption with characters that are no text"


@dataclasses.dataclass(frozen=True)
class CaptionPool:
    """Captions and, for each, the place of its picture among the `images` that were kept."""

    name: str
    captions: tuple[str, ...]
    image_of_caption: np.ndarray
    images: int
    expected: Pool | None
    left_out: Mapping[str, int]
    faults: Mapping[str, int]
    mended: Mapping[str, int]
    repeated: Mapping[str, int]
    pictures_sha256: str
    family: int = 1  # near-twins in a row

    @property
    def notes(self) -> list[str]:
        """One sentence each about what makes the numbers other than they seem."""
        gone = dict(Counter(self.left_out) + Counter(self.faults))
        notes = []
        if self.faults:
            notes.append(f"{self.name}: {describe_counts(self.faults)}, left out with their captions.")
        found = Pool(self.images, len(self.captions))
        expected = found if self.expected is None else self.expected
        difference = pool_difference(self.name, found, expected, left_out=gone)
        if difference is not None:
            notes.append(difference)
        elif self.left_out:
            notes.append(f"{self.name}: {describe_counts(self.left_out)} left out.")
        if any(self.repeated.values()):
            notes.append(
                f"{self.name}: {describe_counts(self.repeated)}; equal candidates tie, and ties count against the "
                "encoder."
            )
        if self.mended:
            notes.append(f"{self.name}: {describe_counts(self.mended)}, read with question marks in their place.")
        return notes

    def describe(self) -> dict[str, object]:
        """The pool in a report."""
        expected = None if self.expected is None else dataclasses.asdict(self.expected)
        return {
            "pool": {"images": self.images, "captions": len(self.captions)},
            "published_pool": expected,
            "left_out": dict(self.left_out),
            "faults": dict(self.faults),
            "mended": dict(self.mended),
            "repeated": dict(self.repeated),
            "notes": self.notes,
            "texts_sha256": hash_texts(list(self.captions)),
            "pictures_sha256": self.pictures_sha256,
        }


def make_pool(
    records: Records, kept: list[int], keys: list[bytes], *, name: str, faults: Mapping[str, int]
) -> CaptionPool:
    """Return the pool of the records `kept`, whose pictures have `keys`; ValueError when none is left."""
    if not kept:
        gone = describe_counts(dict(Counter(records.left_out) + Counter(faults))) or "the list is empty"
        raise ValueError(f"{name} has no picture with a caption ({gone}); correct the path or the files.")
    captions: list[str] = []
    owners: list[int] = []
    mended = 0
    for place, number in enumerate(kept):
        record = records[number]
        mended += record.mended
        captions += record.captions
        owners += [place] * len(record.captions)
    repeated = {"repeated picture": len(keys) - len(set(keys)), "repeated caption": len(captions) - len(set(captions))}
    return CaptionPool(
        name=name,
        captions=tuple(captions),
        image_of_caption=np.array(owners),
        images=len(kept),
        expected=records.expected,
        left_out=dict(records.left_out),
        faults=dict(faults),
        mended={NO_TEXT: mended} if mended else {},
        repeated={name: count for name, count in repeated.items() if count},
        pictures_sha256=hashlib.sha256(b"".join(keys)).hexdigest(),
        family=1 if faults else getattr(records, "family", 1),
    )


def first_records(records: Records, count: int) -> Records:
    """The first `count` records, as a set of its own with the published size of the whole."""
    some = tuple(records[number] for number in range(min(count, len(records))))
    return ListedRecords(records.name, some, records.expected, records.left_out)
