"""The training log: one JSON object per step in train_log.jsonl, and TensorBoard when asked."""

from __future__ import annotations

import json
from pathlib import Path


class TrainLog:
    """Writes train_log.jsonl; a resumed run drops the lines of steps that it makes again."""

    def __init__(self, folder: Path, *, start: int, report_to: str) -> None:
        path = folder / "train_log.jsonl"
        kept = []
        if start and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= start]
        path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        self._board = None
        if report_to == "tensorboard":
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=start + 1)

    def write(self, row: dict[str, float]) -> None:
        """Add one step: `row` has step and the numbers to keep."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in row.items():
                if name != "step":
                    self._board.add_scalar(name, value, int(row["step"]))

    def close(self) -> None:
        """Flush and close the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()
