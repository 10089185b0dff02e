"""Checkpoints of a run: everything that decides how it goes on, written whole or not at all.

`checkpoint-N/state.pt` holds plain tensors, numbers and strings, and is read with `weights_only=True`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

PREFIX = "checkpoint-"


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a run, oldest first."""
    found = [p for p in folder.glob(f"{PREFIX}*") if p.name.removeprefix(PREFIX).isdigit() and p.is_dir()]
    return sorted(found, key=lambda p: int(p.name.removeprefix(PREFIX)))


class CheckpointFault(ValueError):
    """A checkpoint that cannot be written; those before it are whole."""


def save_checkpoint(folder: Path, state: dict[str, Any], *, keep: int) -> Path:
    """Write `state` (its "step" names the checkpoint) into `folder`, then drop all but the newest `keep`.

    Raises CheckpointFault when it cannot be written, and leaves nothing of it.
    """
    target = folder / f"{PREFIX}{state['step']}"
    scratch = folder / f".{target.name}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        scratch.mkdir(parents=True)
        torch.save(state, scratch / "state.pt")
        with open(scratch / "state.pt", "rb") as file:
            os.fsync(file.fileno())  # a full or failing disk says so here, not after the older ones are gone
    except (OSError, RuntimeError) as error:  # torch's writer raises RuntimeError for a full disk
        shutil.rmtree(scratch, ignore_errors=True)
        last = next((path.name for path in reversed(list_checkpoints(folder))), None)
        good = f"the last good one is {last}: make room and go on with" if last else "make room and start again with"
        reason = getattr(error, "strerror", None) or str(error).strip().splitlines()[0]
        raise CheckpointFault(
            f"{target.name} cannot be written to {folder} ({reason}); {good} --resume_from_checkpoint latest."
        ) from error
    shutil.rmtree(target, ignore_errors=True)
    os.replace(scratch, target)
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
            "go on with --resume_from_checkpoint latest, delete them, or name another output_dir."
        )


def load_checkpoint(path: Path, *, trajectory: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Read a checkpoint; ValueError when it is damaged or belongs to a run with other settings.

    `before` says what settings meant that the checkpoint does not name, because they came later.
    """
    try:
        state = torch.load(path / "state.pt", map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, KeyError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"checkpoint {path} cannot be read ({first}); delete it and resume from another.") from None
    saved = before | json.loads(state["trajectory"])
    now = json.loads(json.dumps(trajectory))
    changed = sorted(name for name in now if saved.get(name) != now[name])
    if changed:
        raise ValueError(
            f"checkpoint {path} belongs to a run with another {', '.join(changed)}; "
            "give the same settings, or start anew without resume_from_checkpoint."
        )
    return state
