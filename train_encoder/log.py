"""The training log: one JSON object per step in train_log.jsonl, one per evaluation in eval_log.jsonl, and trackers."""

from __future__ import annotations

import json
from pathlib import Path

from debias_sd.report import write_atomically
from train_encoder.trackers import Tracker


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
