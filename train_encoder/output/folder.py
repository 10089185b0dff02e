"""The folder of a run: one run at a time writes into it, and what was finished there is not overwritten unasked."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.run_state import list_changes, remove_files
from train_encoder.output.checkpoints import describe_changes, list_checkpoints
from train_encoder.settings import RENAMED

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig

# What a run writes, config.json first: a folder without it is not finished. Kept image features stay: they have names
# of their content.
WRITTEN = (
    *("config.json", "model.safetensors", "generation_config.json", "preprocessor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "merges.txt", "spiece.model", "known_words.json", "provenance.json", "README.md"),
    *("train_log.jsonl", "eval_log.jsonl", "tensorboard/events.out.tfevents.*", "validation/step-*"),
    *(".encoder.partial", ".checkpoint-*.partial"),
)


class Finished(Exception):
    """The folder has what the run would make: there is nothing to do."""


def read_finished(folder: Path) -> dict[str, Any] | None:
    """The provenance of the finished run in `folder`; empty for a model of other origin, None without either."""
    has_model = (folder / "model.safetensors").exists() and not (folder / "train_log.jsonl").exists()
    if not has_model and not (folder / "config.json").exists():
        return None
    try:
        provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
        return provenance if provenance["command"][0] == "train_encoder" else {}
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return {}


def check_folder(config: TrainConfig) -> None:
    """Raise ValueError, before anything is loaded, where the run would overwrite what it was not asked to."""
    folder, start = Path(config.output_dir), config.pretrained_model_name_or_path
    if start is not None and Path(start).exists() and folder.exists() and Path(start).samefile(folder):
        raise ValueError(f"output_dir {folder} is the folder of the pretrained model; name another output_dir.")
    finished = read_finished(folder)
    if finished is None:
        return
    if not finished:
        raise ValueError(
            f"output_dir {folder} has a model that train_encoder did not write and does not overwrite; "
            "name another output_dir."
        )
    if not config.overwrite_output_dir and config.resume_from_checkpoint is None:
        raise ValueError(
            f"output_dir {folder} has a finished run; name another output_dir, or delete that run and train anew with "
            "--overwrite_output_dir."
        )


def check_finished(folder: Path, trajectory: dict[str, Any], *, max_train_steps: int) -> None:
    """Raise Finished where a resumed run has nothing left to do in `folder`; ValueError where it is another run's.

    A run whose schedule does not depend on its length may be made longer: there is something to do then.
    """
    finished = read_finished(folder)
    if not finished:
        return
    saved = finished["config"] | finished.get("origin", {})
    saved = {RENAMED.get(name, name): value for name, value in saved.items()}
    now = json.loads(json.dumps({name: value for name, value in trajectory.items() if name in saved}))
    if list_changes(saved, now):
        raise ValueError(describe_changes(saved, now, what=f"the finished run in {folder}"))
    steps = saved["max_train_steps"]
    if steps > max_train_steps:
        raise ValueError(
            f"the finished run in {folder} has {steps} steps and max_train_steps is {max_train_steps}; it must be "
            f"{steps} or more, or name another output_dir."
        )
    if steps == max_train_steps:
        raise Finished(f"the run in {folder} is finished ({steps} steps); everything is left as it is")
    if not list_checkpoints(folder):
        raise ValueError(
            f"the finished run in {folder} has {steps} steps and no checkpoint to go on from to {max_train_steps}; "
            "name another output_dir."
        )


def overwrite(folder: Path) -> None:
    """Delete what an earlier run of `train_encoder` wrote into `folder`, and nothing else."""
    remove_files(folder, WRITTEN)
    for checkpoint in list_checkpoints(folder):
        remove_files(folder, [checkpoint.name])


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Hold `folder` while entered; ValueError when another process holds it. Nothing is left behind, even by a kill.

    A disk that knows no locks (some network disks) is not locked, nor is anything on Windows.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderInUse(
                f"output_dir {folder} is in use by another run; wait for its end, or name another output_dir."
            ) from None
        except OSError:
            pass
        yield
    finally:
        os.close(descriptor)


class FolderInUse(ValueError):
    """Another run writes into the folder."""
