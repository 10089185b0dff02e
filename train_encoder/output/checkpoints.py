"""Checkpoints of a run: everything that decides how it goes on, written whole or not at all.

`checkpoint-N/state.pt` holds plain tensors, numbers and strings.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from debias_sd.run_state import check_finite, find_disk_fault, list_changes, read_state, remove_files, write_state
from train_encoder.settings import RENAMED

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
