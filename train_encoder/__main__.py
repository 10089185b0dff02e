"""Train an encoder: `accelerate launch -m train_encoder --config train_encoder/configs/shapes_debias.yaml`.

`python -m train_encoder` does the same with one process. Several processes, with or without GPUs:

    accelerate launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no \\
        -m train_encoder --config FILE.yaml --expect_processes 2

(`accelerate launch --cpu --num_processes 2` starts one, without a word of its own.) The pairs of all processes are one
contrastive batch: 2 processes of 64 pairs train what 1 of 128 does. Exit code 2 and one sentence for what the user can
mend; 143 when SIGTERM ended the run, which has saved a checkpoint then; 130 for Ctrl-C, which saves nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from debias_sd.commands.terminal import open_terminal, quiet_loading
from debias_sd.datasets.records import TooManyFaults
from train_encoder.settings import LENGTHEN, parse_arguments

INTERRUPTED = 130  # what a shell reports of a process that Ctrl-C ended
if TYPE_CHECKING:
    from train_encoder.run import Run
    from train_encoder.settings import TrainConfig


def main(arguments: list[str]) -> int:
    """Run the command line; return the exit code."""
    open_terminal()
    config: TrainConfig | None = None
    run: Run | None = None
    try:
        try:
            config = parse_arguments(arguments)
            if config.recipe == LENGTHEN:
                from train_encoder.lengthen import prepare_texts as prepare

                quiet_loading()
            else:
                from train_encoder.prepare import prepare
            from train_encoder.processes import MainFailed
            from train_encoder.run_folder import Finished

            configs = _runs(config)
        except ValueError as error:
            return _end(2, str(error))
        for number, config in enumerate(configs, start=1):
            is_last = number == len(configs)
            try:
                run = prepare(config)
            except ValueError as error:
                return _end(2, str(error))
            except MainFailed:
                return _end(2)
            except Finished as done:
                if is_last:
                    return _finished(str(done))
                print(done)
                continue
            code = _train(run, arguments)
            if code or is_last:
                return _end(code)
    except KeyboardInterrupt:
        return _end(INTERRUPTED, _interrupted(run))
    except Exception as error:
        sentence = _disk_fault(error, config)
        if sentence is None:
            raise
        return _end(2, sentence)


def _runs(config: TrainConfig) -> list[TrainConfig]:
    """The runs of this command, one after the other: several where several encoders are lengthened."""
    if config.recipe != LENGTHEN:
        return [config]
    from train_encoder.lengthen import split_config

    return split_config(config)


def _train(run: Run, arguments: list[str]) -> int:
    """Train; code 2 and one sentence, of the main process, for what ends a run early."""
    from debias_sd.run_state import NonFinite
    from train_encoder.export import HubFault
    from train_encoder.processes import MainFailed
    from train_encoder.run_folder import CheckpointFault, FolderInUse
    from train_encoder.train import train

    try:
        return train(run, command=["train_encoder", *arguments])
    except (FloatingPointError, NonFinite, TooManyFaults, CheckpointFault, FolderInUse, HubFault) as error:
        if run.accelerator.is_main_process:
            print(f"train_encoder: {error}", file=sys.stderr)
        return 2
    except MainFailed:
        return 2


def _interrupted(run: Run | None) -> str | None:
    """What Ctrl-C leaves; one of several processes says it."""
    if run is None:
        return "stopped by Ctrl-C before the first step." if _is_first() else None
    from train_encoder.run_folder import describe_last

    said = f"stopped by Ctrl-C after step {run.step}; {describe_last(run.folder)}."
    return said if run.accelerator.is_main_process else None


def _finished(sentence: str) -> int:
    if _is_first():
        print(sentence)
    return _end(0)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


def _disk_fault(error: Exception, config: TrainConfig | None) -> str | None:
    """One sentence where a full or failing disk is what `error` comes from."""
    from debias_sd.run_state import find_disk_fault
    from train_encoder.run_folder import describe_last

    folder = Path(config.output_dir) if config is not None else Path()
    fault = find_disk_fault(error, folder)
    return f"{fault}; {describe_last(folder, first='make room and ')}." if fault else None


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
