"""One process or several: start them, gather features across them with gradient, stop them at one step.

SIGTERM, which schedulers send before they take a machine away: finish the step, save, leave with code 143. Launchers
and schedulers send it to whole process groups, so data workers get it too. They leave it to the run.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from train_encoder.engine import Engine, make_engine, refuse_deepspeed

if TYPE_CHECKING:
    from accelerate import Accelerator

    from train_encoder.settings import TrainConfig

EXIT_CODE = 128 + signal.SIGTERM  # what a shell reports of a process that the signal ended
HOW_TO_START_SEVERAL = (
    "accelerate launch --multi_gpu --num_processes N --num_machines 1 --mixed_precision no --dynamo_backend no "
    "-m train_encoder ..."
)


def start_processes(config: TrainConfig) -> Engine:
    """Join the processes that the launcher started. ValueError when they are not as many, or not run, as expected."""
    from accelerate import Accelerator

    refuse_deepspeed()
    accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=config.mixed_precision)
    engine = make_engine(accelerator)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    for expected in (launched, config.expect_processes or accelerator.num_processes):
        if accelerator.num_processes != expected:
            raise ValueError(
                f"this run has {accelerator.num_processes} process(es), expected {expected}; "
                f"start several, also without a GPU, with: {HOW_TO_START_SEVERAL}"
            )
    return engine


def on_main(accelerator: Accelerator, action: Callable[[], None]) -> None:
    """Let the main process do `action` while the others wait; where it raises, they raise MainFailed and so end too."""
    from accelerate.utils import broadcast_object_list

    done = [True]
    try:
        if accelerator.is_main_process:
            done = [False]
            action()
            done = [True]
    finally:
        broadcast_object_list(done)
    if not done[0]:
        raise MainFailed


class MainFailed(Exception):
    """The main process has ended, and says why."""


def launcher_note(processes: int) -> str | None:
    """A sentence for `accelerate launch --cpu`, which starts one process whatever --num_processes says."""
    if processes > 1 or os.environ.get("ACCELERATE_USE_CPU", "").lower() not in ("1", "true", "yes"):
        return None
    return f"accelerate launch --cpu starts 1 process whatever --num_processes says; several: {HOW_TO_START_SEVERAL}"


def gather_with_gradient(features: Tensor) -> Tensor:
    """Return the features of all processes in the order of their ranks, [processes * local, dim], with gradient."""
    import torch.distributed as dist

    if not dist.is_initialized() or dist.get_world_size() == 1:
        return features
    from torch.distributed._functional_collectives import all_gather_single

    return all_gather_single(features.contiguous(), 0, dist.group.WORLD)


def leave(processes: int, code: int = 0) -> None:
    """End a process that did its work. Several gloo processes skip Python's finalisation, in which some of them abort
    (pytorch/pytorch#179291) so that the launcher would report a failure."""
    if processes > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


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
