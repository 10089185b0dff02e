"""Records that cannot be used, counted by kind; more than a limit stop a run with the list of the first ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from debias_sd.datasets.records import describe_counts

SHOWN = 10


class TooManyFaults(ValueError):
    """More records cannot be used than the run allows; its text lists the first ones."""


class Faults:
    """Which records failed and why; a record that fails again (in the next epoch) counts once."""

    def __init__(self, limit: int, *, setting: str = "data_fault_limit") -> None:
        self.limit, self.setting = limit, setting
        self.kinds: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.kinds)

    def add(self, faults: Iterable[tuple[str, str]]) -> None:
        """Count (name of the record, kind) pairs; TooManyFaults when they are more than the limit."""
        for name, kind in faults:
            self.kinds.setdefault(name, kind)
        if len(self.kinds) > self.limit:
            first = list(self.kinds.items())[:SHOWN]
            more = ", ..." if len(self.kinds) > SHOWN else ""
            raise TooManyFaults(
                f"{len(self.kinds)} records cannot be used ({describe_counts(self.counts())}), {self.setting} is "
                f"{self.limit}: {', '.join(f'{name} ({kind})' for name, kind in first)}{more}; "
                "repair or drop them, or raise the limit."
            )

    def counts(self) -> dict[str, int]:
        """Number of records by kind."""
        return dict(Counter(self.kinds.values()))
