"""What the server remembers of one open page: its runs, its blind ballot and its votes. Gone with the page."""

from __future__ import annotations

from app.run import Run
from app.votes import Ballot, Tally

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
