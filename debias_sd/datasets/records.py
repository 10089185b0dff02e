"""A record: where one picture lies, and its captions. Readers give a sequence of them, in the order of their list.

A reader keeps no pictures and few texts: `records[i]` reads what it needs, so that a set of a million records costs a
worker process as little as one of ten. What cannot be used is counted by kind; more than a limit stop a run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from debias_sd.text import count_of, mend_text


@dataclass(frozen=True)
class Piece:
    """A picture inside another file (a member of a tar archive): `size` bytes from `start` on."""

    path: Path
    start: int
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True)
class Encoded:
    """A picture that its reader has as the bytes of its file (a saved `datasets` folder)."""

    content: bytes
    name: str

    def __str__(self) -> str:
        return self.name


Picture = Path | Piece | Encoded


@dataclass(frozen=True)
class Record:
    """One picture with its captions; `short` is a short caption of its own, where the set has one.

    `key` names the record within its set, the same in every run. `captions` may hold an empty text only where the
    protocol of a set counts it (Urban1k). Half characters (lone surrogates), which no tokenizer reads, become question
    marks here, so that training and evaluation read the same; `mended` is the number of captions that had some.
    """

    key: str
    image: Picture
    captions: tuple[str, ...]
    short: str | None = None
    mended: int = field(default=0, init=False, compare=False)

    def __post_init__(self) -> None:
        plain = tuple(mend_text(text) for text in self.captions)
        mended = sum(one != other for one, other in zip(plain, self.captions, strict=True))
        object.__setattr__(self, "captions", plain)
        object.__setattr__(self, "short", None if self.short is None else mend_text(self.short))
        object.__setattr__(self, "mended", mended)


@dataclass(frozen=True)
class Pool:
    """The size of a set as evaluations use it."""

    images: int
    captions: int

    def __str__(self) -> str:
        return f"{count_of(self.images, 'picture')} and {count_of(self.captions, 'caption')}"


@runtime_checkable
class Records(Protocol):
    """What every reader gives."""

    name: str  # the kind, as on the command line: "coco"
    expected: Pool | None  # what published evaluations have; None for a user's own data
    left_out: Mapping[str, int]  # records (of a list: rows) that the data has and this sequence has not, by reason

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Record: ...


@dataclass(frozen=True)
class ListedRecords:
    """Records held in memory: the evaluation sets, of at most 31,014 pictures.

    `family`: every so many pictures in a row are near-twins of each other, which retrieval then also tells apart.
    """

    name: str
    records: tuple[Record, ...] = field(repr=False)
    expected: Pool | None = None
    left_out: Mapping[str, int] = field(default_factory=dict)
    family: int = 1

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)


def pool_difference(name: str, found: Pool, expected: Pool, *, left_out: Mapping[str, int]) -> str | None:
    """One sentence where set `name` has another size than published evaluations, or None."""
    if found == expected:
        return None
    reasons = f" ({describe_counts(left_out)} left out)" if left_out else ""
    return (
        f"{name} has {found}{reasons} but published results have {expected}: the numbers cannot be compared with them."
    )


def describe_counts(counts: Mapping[str, int]) -> str:
    """`3 missing picture, 1 no caption`: the most frequent first.

    >>> describe_counts({"no caption": 1, "missing picture": 3000})
    '3,000 missing picture, 1 no caption'
    """
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(counts.items(), key=lambda c: (-c[1], c[0])))


SHOWN = 10


class TooManyFaults(ValueError):
    """More records cannot be used than the run allows; its text lists the first ones."""


Fault = tuple[int, str, str]  # number of the record in its set, its key, kind


class Faults:
    """Which records failed and why; a record that fails again (in the next epoch) counts once."""

    def __init__(self, limit: int, *, setting: str = "data_fault_limit", advice: str = "repair or drop them") -> None:
        self.limit, self.setting, self.advice = limit, setting, advice
        self.found: dict[int, tuple[str, str]] = {}

    def __len__(self) -> int:
        return len(self.found)

    def add(self, faults: Iterable[Fault]) -> None:
        """Count records; TooManyFaults when they are more than the limit."""
        for number, key, kind in faults:
            self.found.setdefault(number, (key, kind))
        if len(self.found) > self.limit:
            first = list(self.found.values())[:SHOWN]
            more = ", ..." if len(self.found) > SHOWN else ""
            raise TooManyFaults(
                f"{count_of(len(self.found), 'record')} cannot be used ({describe_counts(self.counts())}), "
                f"{self.setting} is {self.limit}: {', '.join(f'{key} ({kind})' for key, kind in first)}{more}; "
                f"{self.advice}, or raise the limit."
            )

    def counts(self) -> dict[str, int]:
        """Number of records by kind."""
        return dict(Counter(kind for _, kind in self.found.values()))

    def as_list(self) -> list[Fault]:
        """What `add` takes, to go on with in a resumed run."""
        return [(number, key, kind) for number, (key, kind) in self.found.items()]
