"""What the server remembers of one open page: its runs, its blind ballot and its votes. Gone with the page.

In a blind run the order of the pictures is hidden, the person votes round by round, then the names are shown. The tally
counts, over a session, how often each encoder's picture was chosen as the best one; its interval is the exact binomial
one (Clopper and Pearson), which holds for few votes too.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from html import escape

from app.live_run import Run
from debias_sd.text import count_of


@dataclasses.dataclass
class Ballot:
    """The rounds of one blind run: in each the encoders' names in the order in which their pictures are shown."""

    orders: tuple[tuple[str, ...], ...]
    votes: list[str | None] = dataclasses.field(default_factory=list)
    """The chosen encoder of each finished round; None where the person saw no difference."""

    @classmethod
    def shuffled(cls, names: Sequence[str], rounds: int, rng: random.Random) -> Ballot:
        """A ballot whose orders are drawn independently."""
        return cls(tuple(tuple(rng.sample(list(names), len(names))) for _ in range(rounds)))

    @property
    def round(self) -> int:
        """The number of the round at hand, from 0; the number of rounds when all are done."""
        return len(self.votes)

    @property
    def is_over(self) -> bool:
        return self.round == len(self.orders)

    def vote(self, place: int | None) -> None:
        """Choose the picture at `place` of the round at hand, or none. ValueError when there is no such picture."""
        if self.is_over:
            raise ValueError("all rounds are voted on; start another comparison.")
        order = self.orders[self.round]
        if place is not None and not 0 <= place < len(order):
            raise ValueError(f"picture {place + 1} was chosen, this round has {len(order)}; choose one of them.")
        self.votes.append(None if place is None else order[place])


@dataclasses.dataclass
class Tally:
    """Votes of a session: for each encoder how often it was shown in a voted round, and how often chosen."""

    shown: Counter[str] = dataclasses.field(default_factory=Counter)
    chosen: Counter[str] = dataclasses.field(default_factory=Counter)
    rounds: int = 0

    def add(self, order: Sequence[str], choice: str | None) -> None:
        """Count one round."""
        self.rounds += 1
        self.shown.update(order)
        if choice is not None:
            self.chosen[choice] += 1


def _below(successes: int, trials: int, chance: float) -> float:
    """P(X <= successes) of a binomial distribution."""
    return sum(math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(successes + 1))


def binomial_interval(successes: int, trials: int, *, level: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a chance (Clopper and Pearson 1934), each in 0..1.

    >>> [round(end, 4) for end in binomial_interval(8, 10)]
    [0.4439, 0.9748]
    >>> binomial_interval(0, 0)
    (0.0, 1.0)
    """
    tail = (1 - level) / 2
    low = _root(lambda p: 1 - _below(successes - 1, trials, p) - tail) if successes else 0.0
    high = _root(lambda p: tail - _below(successes, trials, p)) if successes < trials else 1.0
    return low, high


def _root(rising: Callable[[float], float]) -> float:
    """Where a rising function of 0..1 crosses zero, by halving."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(middle) > 0 else (middle, high)
    return (low + high) / 2


def tally_html(tally: Tally, titles: dict[str, str]) -> str:
    """The tally as a table, with what chance alone would give each encoder."""
    if not tally.rounds:
        return ""
    rows = []
    for name, title in titles.items():
        shown, chosen = tally.shown[name], tally.chosen[name]
        if not shown:
            continue
        low, high = binomial_interval(chosen, shown)
        rows.append(
            f"<tr><th scope=row>{escape(title)}</th><td>{chosen} of {shown}</td><td>{100 * chosen / shown:.0f} %</td>"
            f"<td>{100 * low:.0f} to {100 * high:.0f} %</td></tr>"
        )
    none = tally.rounds - sum(tally.chosen.values())
    return (
        '<table class="tally"><caption>Your votes of this session</caption><thead><tr><th>encoder</th><th>chosen</th>'
        f"<th>share</th><th>95 % interval</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f'<p class="hint">{count_of(tally.rounds, "round")}, {none} without a difference. Chance alone gives each '
        f"{100 / max(1, len(rows)):.0f} %.</p>"
    )


KEPT = 24  # comparisons in the gallery; older ones go
KEPT_BYTES = 100_000_000  # of their pictures: 33 of 1024 x 1024 pixels


class Session:
    """Mutable on purpose: gradio keeps one per page and hands the same one to every event.

    No dataclass: gradio would write those out as part of the page.
    """

    def __init__(self) -> None:
        self.run: Run | None = None
        self.ballot: Ballot | None = None
        self.tally = Tally()
        self.kept: list[Run] = []
        self.chosen = -1

    @property
    def is_blind(self) -> bool:
        """Whether the run at hand must not show names yet."""
        return self.ballot is not None and not self.ballot.is_over

    def keep(self, run: Run) -> None:
        """Put a finished run into the gallery, newest first."""
        if any(track.pictures for track in run.tracks):
            self.kept.insert(0, run)
            del self.kept[KEPT:]
            while len(self.kept) > 1 and sum(map(_bytes_of, self.kept)) > KEPT_BYTES:
                del self.kept[-1]
            self.chosen = 0

    def cancel(self) -> None:
        """Stop the run at hand after its current step."""
        if self.run is not None:
            self.run.stop.set()


def _bytes_of(run: Run) -> int:
    return sum(picture.image.nbytes for track in run.tracks for picture in track.pictures)
