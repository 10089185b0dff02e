"""SIGTERM, which schedulers send before they take a machine away: finish the step, save, leave with code 143.

Launchers and schedulers send it to whole process groups, so data workers get it too; they leave it to the run.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM  # what a shell reports of a process that the signal ended
INTERRUPTED = 128 + signal.SIGINT


class StopAsked(Exception):
    """SIGTERM came during something that can be left out: retrieval on the way."""


class StopRequest:
    """Notes SIGTERM while it is entered.

    `asked`: this process has had it. `agreed`: one of all processes had had it by the last step; the step sets it, and
    only then do all stop, at the same step.
    """

    def __init__(self) -> None:
        self.asked = self.agreed = False
        self._before: object = None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)

    def check(self) -> None:
        """Raise StopAsked when this process has had the signal."""
        if self.asked:
            raise StopAsked

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def leave_signals_to_the_run(_: int) -> None:
    """For a data worker's start: the step that the run finishes needs it, whoever else got SIGTERM or Ctrl-C.

    PyTorch's own handler ends a worker that anyone but its parent sends SIGTERM, and the run with it. A worker whose
    parent is gone ends by itself within seconds.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
