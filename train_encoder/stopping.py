"""SIGTERM, which schedulers send before they take a machine away: finish the step, save, leave with code 143."""

from __future__ import annotations

import signal
import threading
from types import FrameType

EXIT_CODE = 128 + signal.SIGTERM  # what a shell reports of a process that the signal ended


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

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
