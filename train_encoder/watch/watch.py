"""What is seen of a run while it trains: a bar with losses and pace, the log, its trackers, retrieval, pictures."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from train_encoder.processes import StopAsked, on_main
from train_encoder.watch.log import TrainLog, open_trackers
from train_encoder.watch.retrieval import describe, evaluate, fall_of_short
from train_encoder.watch.validation import draw_validation

if TYPE_CHECKING:
    from types import TracebackType

    from train_encoder.run import Run


class Watch:
    """Enter it around the loop. Only the main process says and writes anything; the others wait where it takes long."""

    def __init__(self, run: Run) -> None:
        self.run, self.main = run, run.accelerator.is_main_process

    def __enter__(self) -> Watch:
        from tqdm import tqdm

        run, config = self.run, self.run.config
        self.bar = tqdm(total=config.max_train_steps, initial=run.step, disable=not self.main, unit="step")
        if self.main:
            trackers = open_trackers(config, run.folder, start=run.step)
            self.log = TrainLog(run.folder, start=run.step, trackers=trackers)
        self._since = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.close()
        if self.main:
            self.log.close()

    def begin(self) -> dict[str, float]:
        """Measure the initial checkpoint, as what later measurements are compared with. Returns the log's last row."""
        if self.run.config.eval_steps and self.run.step == 0:
            self._measure()
        return self.log.last() if self.main else {}

    def step(self, row: dict[str, float]) -> None:
        """Log a step, and measure or draw when that is due."""
        if self.main:
            self.log.write(row)
        self.bar.update()
        self.bar.set_postfix(self._shown(row), refresh=False)
        config, number = self.run.config, self.run.step
        if config.eval_steps and number % config.eval_steps == 0:
            self._measure()
        if config.validation_steps and number % config.validation_steps == 0:
            self._draw()

    def _shown(self, row: dict[str, float]) -> dict[str, str]:
        """Losses, temperature (the factor of the logits) and the pace of all processes since the last step."""
        now = time.monotonic()
        pace, self._since = self.run.pairs / max(now - self._since, 1e-6), now
        parts = {name: f"{row[name]:.3f}" for name in ("loss", "long", "short", "contrastive") if name in row}
        if "contrastive" in parts and "grounding" not in row:
            del parts["contrastive"]  # it is the loss
        return parts | {"scale": f"{row['scale']:.1f}", "images/s": f"{pace:.1f}"}

    def _measure(self) -> None:
        on_main(self.run.accelerator, self._measure_on_main)
        self._since = time.monotonic()

    def _draw_on_main(self) -> None:
        try:
            for path in draw_validation(self.run):
                self.bar.write(f"drawn: {path}")
        except Exception as error:  # pictures to look at do not end a training of days
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            self.bar.write(f"warning: the pictures of step {self.run.step} are not drawn ({first}); training goes on")

    def _measure_on_main(self) -> None:
        with contextlib.suppress(StopAsked):
            self._tell(evaluate(self.run, self.run.heldout), pairs=len(self.run.heldout.short_texts))

    def _tell(self, row: dict[str, float], *, pairs: int) -> None:
        self.log.write_evaluation(row)
        self.bar.write(describe(row))
        fall = fall_of_short(self.log.evaluations()[0], row, pairs=pairs)
        if fall:
            self.bar.write(f"warning: {fall}")

    def _draw(self) -> None:
        on_main(self.run.accelerator, self._draw_on_main)
        self._since = time.monotonic()
