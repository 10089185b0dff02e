"""Where the numbers of a run go beside train_log.jsonl: TensorBoard, or wandb and trackio through accelerate."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig

PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}


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
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ValueError(f"report_to is {name}, which is not installed; pip install {PACKAGES[name]}, or set none.")


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
