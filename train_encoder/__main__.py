"""Train an encoder: `accelerate launch -m train_encoder --config train_encoder/configs/shapes_debias.yaml`.

`python -m train_encoder` does the same with one process. Several processes, with or without GPUs:

    accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no \\
        -m train_encoder --config FILE.yaml --expect_processes 2

(`accelerate launch --cpu --num_processes 2` starts one, without a word of its own.) The pairs of all processes are one
contrastive batch: 2 processes of 64 pairs train what 1 of 128 does. Exit code 2 and one sentence for what the user can
mend; 143 when SIGTERM ended the run, which has saved a checkpoint then; 130 for Ctrl-C, which saves nothing.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from debias_sd.commands.terminal import open_terminal
from debias_sd.datasets.faults import TooManyFaults
from train_encoder.config import parse_arguments
from train_encoder.stopping import INTERRUPTED

if TYPE_CHECKING:
    from train_encoder.run import Run

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # what a full or failing disk answers


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    open_terminal()
    run: Run | None = None
    try:
        try:
            config = parse_arguments(arguments)
            from train_encoder.run import prepare

            run = prepare(config)
        except ValueError as error:
            return _end(2, str(error))
        return _end(_train(run, arguments))
    except KeyboardInterrupt:
        return _end(INTERRUPTED, _interrupted(run))
    except OSError as error:
        if error.errno not in DISK:
            raise
        return _end(2, f"{error.strerror}{f' ({error.filename})' if error.filename else ''}; {_go_on(run)}.")


def _train(run: Run, arguments: list[str]) -> int:
    """Train; code 2 and one sentence for what ends a run early."""
    from train_encoder.checkpoints import CheckpointFault
    from train_encoder.folder_lock import FolderInUse
    from train_encoder.hub import HubFault
    from train_encoder.train import train

    try:
        return train(run, command=["train_encoder", *arguments])
    except (FloatingPointError, TooManyFaults, CheckpointFault, FolderInUse, HubFault) as error:
        print(f"train_encoder: {error}", file=sys.stderr)
        return 2


def _interrupted(run: Run | None) -> str | None:
    """What Ctrl-C leaves; one of several processes says it."""
    if run is None:
        return "stopped by Ctrl-C before the first step." if os.environ.get("RANK", "0") == "0" else None
    return f"stopped by Ctrl-C behind step {run.step}; {_go_on(run)}." if run.accelerator.is_main_process else None


def _go_on(run: Run | None) -> str:
    from train_encoder.checkpoints import list_checkpoints

    saved = list_checkpoints(run.folder) if run is not None else []
    if not saved:
        return "no checkpoint is there, so it starts from the beginning"
    return f"the last good checkpoint is {saved[-1].name}: go on with --resume_from_checkpoint latest"


def _end(code: int, sentence: str | None = None) -> int:
    """Say `sentence` and end with `code`; one of several processes ends here and now."""
    if sentence:
        print(f"train_encoder: {sentence}", file=sys.stderr)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1:
        from train_encoder.processes import leave

        leave(processes, code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
