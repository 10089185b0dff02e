"""The line in front of a pipeline: first come, first served, bounded.

Pipelines are not thread-safe, and all encoders of one base share its UNet, VAE and memory: one picture at a time.
A ticket counts those before it, so that a waiting person can be told; one leaves the line from any place.
"""

from __future__ import annotations

import itertools
import threading

from app.settings import WAITING


class LineFullError(ValueError):
    """The line has no room: one sentence for the person who came."""


class Ticket:
    """A place in a line; `leave` may be called from any thread, and more than once."""

    def __init__(self, line: Line, number: int) -> None:
        self._line, self._number = line, number

    @property
    def before(self) -> int:
        """How many are before this one; 0 when it is its turn."""
        return self._line.before(self._number)

    def leave(self) -> None:
        """Give the place up."""
        self._line.leave(self._number)


class Line:
    """One is served, up to `waiting` wait, one more is refused."""

    def __init__(self, waiting: int = WAITING) -> None:
        self.waiting = waiting
        self._numbers = itertools.count()
        self._places: list[int] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            return len(self._places)

    def join(self) -> Ticket:
        """Take the last place; raises LineFullError past `waiting`."""
        with self._lock:
            if len(self._places) > self.waiting:
                raise LineFullError(f"{self.waiting} people wait already, no more can; try again in a minute.")
            number = next(self._numbers)
            self._places.append(number)
        return Ticket(self, number)

    def before(self, number: int) -> int:
        """How many are before the holder of `number`."""
        with self._lock:
            return self._places.index(number)

    def leave(self, number: int) -> None:
        """Free the place of `number`, if it is still held."""
        with self._lock:
            if number in self._places:
                self._places.remove(number)
