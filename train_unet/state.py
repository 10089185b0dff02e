"""Training states and finished folders on disk: written under a temporary name, then renamed; read without pickle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch


def save_state(path: Path, step: int, parts: dict[str, Any]) -> None:
    """Write `step` and the state dict of every part to `path`; a crash leaves the previous file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save({"step": step, **{name: part.state_dict() for name, part in parts.items()}}, temporary)
    os.replace(temporary, path)


def load_state(path: Path, parts: dict[str, Any]) -> int:
    """Load `path` into the parts and return its step; 0 when there is no such file yet."""
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    return int(state["step"])


def check_same_run(path: Path, settings: dict[str, Any]) -> None:
    """Note at `path` what decides this run's result; ValueError when an earlier run in that folder had it otherwise.

    Finished parts and states of a folder are taken as they are, so they must be those of the same run. Settings that
    the earlier run did not note (it stopped after the VAE) are added. Makes the folder.
    """
    noted = json.loads(path.read_text()) if path.exists() else {}
    for name, value in settings.items():
        if noted.get(name, value) != value:
            raise ValueError(
                f"{path.parent} holds a run with {name} {noted[name]}, this one has {value}; give another output_dir, "
                "the same setting, or delete the folder."
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(noted | settings, indent=1) + "\n")
    os.replace(temporary, path)


def put_in_place(fresh: Path, target: Path) -> None:
    """Give the finished folder `fresh` the name `target`; an older folder there is moved aside first, deleted last."""
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
