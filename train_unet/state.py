"""Training states and finished folders on disk: written under a temporary name, then renamed; read without pickle."""

from __future__ import annotations

import datetime
import json
import os
import shutil
from pathlib import Path
from typing import Any

from debias_sd.report import write_atomically
from debias_sd.run_state import check_finite, list_changes, note_versions, read_state, write_state

# What a run writes into its folder.
MADE = ("vae", "vae-first", "pipeline")
WRITTEN = (
    *(name + ending for name in MADE for ending in ("", ".tmp", ".old")),
    *("vae-state.pt", "decoder-state.pt", "unet-state.pt", ".*-state.pt.partial"),
    *("pool.safetensors", "pool.tmp", "log.jsonl", "settings.json"),
)
LENGTHS = ("vae_train_steps", "decoder_train_steps", "max_train_steps")
DIVERGED = (
    "what was saved before stays, but the same settings lead here again: start a new run, in another output_dir, with "
    "a lower learning rate"
)


def save_state(path: Path, step: int, parts: dict[str, Any]) -> None:
    """Write `step` and the state dict of every part to `path`; NaN, infinity or a crash leaves the previous file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {"step": step, **{name: part.state_dict() for name, part in parts.items()}}
    check_finite(state, what=f"{path.name} of step {step} is not saved: the run", advice=DIVERGED)
    write_state(path, state)


def load_state(path: Path, parts: dict[str, Any]) -> int:
    """Load `path` into the parts and return its step; 0 when there is no such file yet."""
    if not path.exists():
        return 0
    state = read_state(path)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["step"])


def check_same_run(path: Path, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Note at `path` what decides this run's result; ValueError when an earlier run in that folder had it otherwise.

    Finished parts and states of a folder are taken as they are, so they must be those of the same run. Settings that
    the earlier run did not note (it stopped after the VAE) are added. Makes the folder. Returns the versions of the
    packages that the run has been computed with so far, and says where they have changed.
    """
    folder = path.parent
    noted = json.loads(path.read_text()) if path.exists() else {}
    if not noted and any((folder / name).exists() for name in MADE):
        raise ValueError(f"{folder} has a model that train_unet did not write; give another output_dir.")
    now = json.loads(json.dumps(settings))
    changes = list_changes(noted, {name: value for name, value in now.items() if name in noted})
    if changes:
        only_length = all(change.startswith(LENGTHS) for change in changes)
        reason = "; its learning rate falls to 0 over exactly these steps, so no other length has its weights"
        raise ValueError(
            f"{folder} holds a run with another {', '.join(changes)}{reason if only_length else ''}; give another "
            "output_dir, or what that run had, or delete it with --overwrite_output_dir."
        )
    today = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    versions, warning = note_versions(noted.get("versions", []), since=today)
    if warning:
        print(f"warning: {warning}")
    write_atomically(path, (json.dumps(noted | now | {"versions": versions}, indent=1) + "\n").encode())
    return versions


def is_finished(target: Path) -> bool:
    """Whether the run has made the folder `target`; says so."""
    if target.exists():
        print(f"{target} is finished; everything is left as it is (--overwrite_output_dir deletes it and trains anew)")
    return target.exists()


def put_in_place(fresh: Path, target: Path) -> None:
    """Give the finished folder `fresh` the name `target`; an older folder there is moved aside first, deleted last."""
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
