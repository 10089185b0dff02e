"""Training states and finished folders on disk: written under a temporary name, then renamed; read without pickle."""

from __future__ import annotations

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


def put_in_place(fresh: Path, target: Path) -> None:
    """Give the finished folder `fresh` the name `target`; an older folder there is moved aside first, deleted last."""
    old = target.with_name(target.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.replace(target, old)
    os.replace(fresh, target)
    shutil.rmtree(old, ignore_errors=True)
