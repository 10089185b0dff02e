"""One process or several: start them, gather features across them with gradient, and leave without an abort."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from train_encoder import zero
from train_encoder.engines import check_launcher

if TYPE_CHECKING:
    from accelerate import Accelerator

    from train_encoder.settings import TrainConfig

HOW_TO_START_SEVERAL = (
    "accelerate launch --multi_gpu --num_processes N --num_machines 1 --mixed_precision no --dynamo_backend no "
    "-m train_encoder ..."
)


def start_processes(config: TrainConfig) -> Accelerator:
    """Join the processes that the launcher started; ValueError when they are not as many, or not run, as expected."""
    from accelerate import Accelerator, InitProcessGroupKwargs

    if zero.is_wanted():
        zero.check_installed()
        # accelerate names no backend for DeepSpeed on CPUs, and its `cpu` would leave DeepSpeed out without a word.
        backend = [] if torch.cuda.is_available() else [InitProcessGroupKwargs(backend="gloo")]
        accelerator = Accelerator(mixed_precision="no", kwargs_handlers=backend)
        check_launcher(accelerator)
        zero.check_stage(accelerator)
    else:
        accelerator = Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=config.mixed_precision)
        check_launcher(accelerator)
    launched = int(os.environ.get("WORLD_SIZE", "1"))
    for expected in (launched, config.expect_processes or accelerator.num_processes):
        if accelerator.num_processes != expected:
            raise ValueError(
                f"this run has {accelerator.num_processes} process(es), expected {expected}; "
                f"start several, also without a GPU, with: {HOW_TO_START_SEVERAL}"
            )
    return accelerator


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
