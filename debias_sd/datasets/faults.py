"""Records that cannot be used, counted by kind; more than a limit stop a run with the list of the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from debias_sd.counts import count_of
from debias_sd.datasets.records import describe_counts

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
