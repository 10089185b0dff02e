"""The folder of a run: one run at a time writes into it, and what was finished there is not overwritten unasked.

Its checkpoints hold everything that decides how a run goes on, written whole or not at all: `checkpoint-N/state.pt` has
plain tensors, numbers and strings.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.run_state import check_finite, find_disk_fault, list_changes, read_state, remove_files, write_state
from train_encoder.settings import RENAMED

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig

PREFIX = "checkpoint-"


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first; folders of that name that are not ours are left out."""
    found = [p for p in folder.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdigit()]
    return sorted((p for p in found if (p / "state.pt").is_file()), key=lambda p: int(p.name.removeprefix(PREFIX)))


class CheckpointFault(ValueError):
    """A checkpoint that cannot be written; those before it are whole."""


def describe_last(folder: Path, *, first: str = "") -> str:
    """Which checkpoint stays when a run ends early, and how it goes on, after what is to be done `first`."""
    saved = list_checkpoints(folder)
    if not saved:
        return f"no checkpoint is there: {first}start it again"
    return f"the last good checkpoint is {saved[-1].name}: {first}go on with --resume_from_checkpoint latest"


def describe_diverged(folder: Path) -> str:
    """What can be done when a run has come to NaN or infinity."""
    stays = next((f"{path.name} stays, but " for path in reversed(list_checkpoints(folder))), "")
    return (
        f"{stays}the same settings lead here again: start a new run, in another output_dir, with a lower learning_rate "
        "or with max_grad_norm"
    )


def save_checkpoint(folder: Path, state: dict[str, Any], *, keep: int) -> Path:
    """Write `state` (its "step" names the checkpoint) into `folder`, then drop all but the newest `keep`.

    Raises NonFinite when there is NaN or infinity in it, CheckpointFault when it cannot be written, and leaves nothing
    of it.
    """
    target = folder / f"{PREFIX}{state['step']}"
    check_finite(state, what=f"{target.name} is not saved: the run", advice=describe_diverged(folder))
    remove_files(folder, [f".{PREFIX}*.partial"])  # a killed run may have left one
    scratch = folder / f".{target.name}.partial"
    try:
        scratch.mkdir(parents=True)
        write_state(scratch / "state.pt", state)
        if target in list_checkpoints(folder):
            shutil.rmtree(target)
        os.replace(scratch, target)
    except OSError as error:
        shutil.rmtree(scratch, ignore_errors=True)
        reason = find_disk_fault(error, folder) or error.strerror
        raise CheckpointFault(
            f"{target.name} cannot be written: {reason}; {describe_last(folder, first='make room and ')}."
        ) from error
    for old in list_checkpoints(folder)[:-keep]:
        shutil.rmtree(old)
    return target


def find_checkpoint(folder: Path, wanted: str | None) -> Path | None:
    """The checkpoint that `resume_from_checkpoint` means: the newest of `folder` for `latest`, or the named one."""
    if wanted is None:
        return None
    if wanted == "latest":
        return next(iter(reversed(list_checkpoints(folder))), None)
    for path in (Path(wanted), folder / wanted):
        if (path / "state.pt").is_file():
            return path
    raise ValueError(f"checkpoint {wanted} does not exist; pass a checkpoint-N folder or `latest`.")


def check_later(folder: Path, step: int) -> None:
    """Raise ValueError when `folder` has checkpoints past `step`: a run from there would mix its own with them."""
    later = [path.name for path in list_checkpoints(folder) if int(path.name.removeprefix(PREFIX)) > step]
    if later:
        raise ValueError(
            f"output_dir {folder} has {', '.join(later)} of an earlier run and this one starts at step {step}; "
            "go on with --resume_from_checkpoint latest, delete that run with --overwrite_output_dir, or name another "
            "output_dir."
        )


def load_checkpoint(path: Path, *, trajectory: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint; ValueError when it is damaged or belongs to a run with other settings, data or start.

    `before` says what settings meant that the checkpoint does not name, because they came later.
    """
    state = read_state(path / "state.pt")
    written = json.loads(state["trajectory"])
    saved = before | {RENAMED.get(name, name): value for name, value in written.items()}
    now = json.loads(json.dumps(trajectory))
    if any(name.endswith(" of the start") and name not in saved for name in now):
        raise ValueError(
            f"checkpoint {path} was written by an earlier version, which did not note its data and its start; "
            "finish that run with that version, or start anew in another output_dir."
        )
    if list_changes(saved, now):
        raise ValueError(describe_changes(saved, now, what=f"checkpoint {path}"))
    return state


def describe_changes(saved: dict[str, Any], now: dict[str, Any], *, what: str) -> str:
    """Why `what`, which belongs to a run with `saved`, is not gone on with `now`: all that differs, by name."""
    changes = list_changes(saved, now)
    if [name.split(" (")[0] for name in changes] == ["max_train_steps"]:
        return (
            f"{what} belongs to a run with another {changes[0]}, whose learning rate falls to 0 over exactly these "
            "steps, so that no other length has its weights; train anew in another output_dir, or start there from "
            "the finished encoder."
        )
    return (
        f"{what} belongs to a run with another {', '.join(changes)}; give what that run had, or start anew in another "
        "output_dir."
    )


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
