"""The training log: one JSON object per step in train_log.jsonl, one per evaluation in eval_log.jsonl; and trackers.

TensorBoard has its own writer here; wandb and trackio are reached through accelerate.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from debias_sd.report import write_atomically

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig


class Tracker(Protocol):
    """What the log needs of one."""

    def log(self, values: dict[str, float], step: int) -> None: ...

    def finish(self) -> None: ...


def names_of(report_to: str) -> list[str]:
    """The names in `report_to`: one, several with commas between them, or none."""
    return [name.strip() for name in report_to.split(",") if name.strip() not in ("", "none")]


def check_trackers(report_to: str) -> None:
    """Raise ValueError for one that is not installed: before training, not at its first step."""
    for name in names_of(report_to):
        if importlib.util.find_spec(name) is None:
            raise ValueError(f"report_to is {name}, which is not installed; pip install {name}, or set none.")


def open_trackers(config: TrainConfig, folder: Path, *, start: int) -> list[Tracker]:
    """The trackers of a run that goes on from step `start`."""
    return [_open_tracker(name, config, folder, start=start) for name in names_of(config.report_to)]


def _open_tracker(name: str, config: TrainConfig, folder: Path, *, start: int) -> Tracker:
    if name == "tensorboard":
        return _TensorBoard(folder / "tensorboard", start=start)
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    tracker: Any = LOGGER_TYPE_TO_CLASS[name](config.tracker_project_name)
    if hasattr(tracker, "start"):
        tracker.start()
    tracker.store_init_configuration(config.trajectory())
    return _Accelerates(tracker)


class _TensorBoard:
    """Event files; a resumed run hides what it makes again."""

    def __init__(self, folder: Path, *, start: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=start + 1)

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self._writer.close()


class _Accelerates:
    """One of accelerate's trackers."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def log(self, values: dict[str, float], step: int) -> None:
        self._tracker.log(values, step=step)

    def finish(self) -> None:
        self._tracker.finish()


class TrainLog:
    """Writes both files; a resumed run drops the lines of steps that it makes again."""

    def __init__(self, folder: Path, *, start: int, trackers: list[Tracker]) -> None:
        self._train, self._eval = folder / "train_log.jsonl", folder / "eval_log.jsonl"
        for path in (self._train, self._eval):
            if path.is_file():
                kept = [row for row in _rows(path) if row["step"] <= start] if start else []
                write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept).encode())
        self._file = self._train.open("a", encoding="utf-8")
        self._trackers = trackers

    def write(self, row: dict[str, float]) -> None:
        """Add one step: `row` has step and the numbers to keep."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        self._track(row, prefix="")

    def write_evaluation(self, row: dict[str, float]) -> None:
        """Add one evaluation, `row` likewise."""
        with self._eval.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        self._track(row, prefix="eval/")

    def evaluations(self) -> list[dict[str, float]]:
        """The evaluations so far, those before a resume too."""
        return _rows(self._eval) if self._eval.is_file() else []

    def last(self) -> dict[str, float]:
        """The last step so far; empty before the first."""
        return next(iter(_rows(self._train)[-1:]), {})

    def _track(self, row: dict[str, float], *, prefix: str) -> None:
        values = {prefix + name: value for name, value in row.items() if name != "step"}
        for tracker in self._trackers:
            tracker.log(values, int(row["step"]))

    def close(self) -> None:
        """Flush and close the files."""
        self._file.close()
        for tracker in self._trackers:
            tracker.finish()


def _rows(path: Path) -> list[dict[str, float]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]  # a killed run may have left half a line
