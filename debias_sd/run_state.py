"""The state of a training run on disk: finite, written whole or not at all, and told apart from another run's.

Both trainers save and compare through here. Read without pickle (`weights_only=True`).
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from debias_sd.text import count_of

COMPUTING = ("torch", "transformers", "accelerate", "diffusers", "tokenizers", "numpy", "pillow", "debias-sd")
DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file would be larger than this system allows",
    errno.EROFS: "the disk is read-only",
    errno.EIO: "the disk fails",
}
_HASHED = "sha256:"


class NonFinite(ValueError):
    """NaN or infinity in what would be saved: nothing of it is written."""


def check_finite(state: Any, *, what: str, advice: str) -> None:
    """Raise NonFinite when a tensor or number anywhere in `state` (dicts and lists, of any depth) is NaN or infinite.

    Everything that a training run keeps or ships is looked at here before it is written. The sentence begins with
    `what` and ends with `advice`.
    """
    faulty = [name for name, value in _leaves(state, "") if not _is_finite(value)]
    if faulty:
        first = f", the first is {faulty[0]}"
        count = count_of(len(faulty), "tensor") + first if len(faulty) > 1 else faulty[0]
        raise NonFinite(f"{what} holds NaN or infinity ({count}); {advice}.")


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Tensor | float]]:
    if isinstance(value, Tensor | float):
        yield name, value
    elif isinstance(value, dict | list | tuple):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(part, f"{name}.{key}" if name else str(key))


def _is_finite(value: Tensor | float) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write `state` to `path`, whole or not at all; OSError says what the disk answered, and leaves what was there."""
    scratch = path.with_name(f".{path.name}.partial")
    try:
        with open(scratch, "wb") as file:
            writer = _Writer(file)
            try:
                torch.save(state, writer)
            except RuntimeError as error:  # of a full disk torch says "unexpected pos"
                raise writer.fault or error from error
            file.flush()
            os.fsync(file.fileno())  # a full or failing disk says so here, not after the older state is gone
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


class _Writer:
    """A file for torch.save that keeps the disk's own error, which torch's writer loses."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.fault = file, None

    def write(self, content: bytes) -> int:
        try:
            return self._file.write(content)
        except OSError as error:
            self.fault = error
            raise

    def flush(self) -> None:
        self._file.flush()


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; ValueError when the file is damaged."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and disk fail in many ways on half a file
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{path} cannot be read ({first}); delete it and go on from another, or start anew.") from None


def find_disk_fault(error: BaseException | None, folder: Path) -> str | None:
    """What a full or failing disk answered, where that caused `error`; None for any other error.

    Libraries in Rust (safetensors, tokenizers) tell it in words only; others raise errors of their own from it.
    """
    while error is not None:
        number, place = None, folder
        if isinstance(error, OSError):
            number, place = error.errno, error.filename or folder
        elif found := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(found[1])
        if number in DISK:
            return f"{DISK[number]} ({os.strerror(number)}: {place})"
        error = error.__cause__ or error.__context__
    return None


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that compute, as far as they are installed."""
    versions = {"python": platform.python_version()}
    for name in COMPUTING:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def note_versions(history: list[dict[str, Any]], *, since: int | str) -> tuple[list[dict[str, Any]], str | None]:
    """`history` (versions, and the step or time from which on they ran) with today's; a warning where they changed."""
    now = package_versions()
    changed = list_changes(history[-1]["versions"], now) if history else []
    if history and not changed:
        return history, None
    warning = f"going on with another {', '.join(changed)}: the weights may differ from an uninterrupted run's"
    return [*history, {"since": since, "versions": now}], warning if changed else None


def fingerprint(parts: Iterable[bytes]) -> str:
    """SHA-256 of parts, each with its length, as `list_changes` knows it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return _HASHED + digest.hexdigest()[:32]


def weights_fingerprint(state: dict[str, Tensor]) -> str:
    """Of tensors, with their names, shapes and types."""

    def parts() -> Iterator[bytes]:
        for name, tensor in sorted(state.items()):
            whole = tensor.detach().cpu().contiguous()
            yield f"{name} {whole.dtype} {list(whole.shape)}".encode()
            yield memoryview(whole.reshape(-1).view(torch.uint8).numpy())

    return fingerprint(parts())


def list_changes(saved: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """What of `now` is otherwise in `saved`, as `name (was, now is)`, or the name alone of a long value.

    Fingerprints are named only where nothing else differs: another seed or path has other ones of itself.
    """
    plain, hashed = [], []
    for name in sorted(now):
        if name in saved and saved[name] == now[name]:
            continue
        values = [str(side.get(name, "unknown")) for side in (saved, now)]
        if any(value.startswith(_HASHED) for value in values):
            hashed.append(name)
        else:
            plain.append(name if max(map(len, values)) > 60 else f"{name} ({values[0]}, now {values[1]})")
    return plain or hashed


def remove_files(folder: Path, patterns: Iterable[str]) -> None:
    """Delete the files and folders below `folder` that match; of a link the link alone. Nothing else is touched."""
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
