"""Train an encoder: `accelerate launch -m train_encoder --config train_encoder/configs/shapes_debias.yaml`.

`python -m train_encoder` does the same with one process. Several processes, with or without GPUs:

    accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no \\
        -m train_encoder --config FILE.yaml --expect_processes 2

(`accelerate launch --cpu --num_processes 2` starts one, without a word of its own.) The pairs of all processes are one
contrastive batch: 2 processes of 64 pairs train what 1 of 128 does. Exit code 2 and one
sentence for what the user can mend; 143 when SIGTERM ended the run, which has saved a checkpoint then.
"""

from __future__ import annotations

import sys

from debias_sd.datasets.faults import TooManyFaults
from train_encoder.config import parse_arguments


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    try:
        config = parse_arguments(arguments)
        from train_encoder.checkpoints import CheckpointFault
        from train_encoder.hub import HubFault
        from train_encoder.run import prepare
        from train_encoder.train import train

        run = prepare(config)
    except ValueError as error:
        print(f"train_encoder: {error}", file=sys.stderr)
        return 2
    try:
        code = train(run, command=["train_encoder", *arguments])
    except (FloatingPointError, TooManyFaults, CheckpointFault, HubFault) as error:
        print(f"train_encoder: {error}", file=sys.stderr)
        return 2
    from train_encoder.processes import leave

    leave(run.accelerator.num_processes, code)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
