"""What was found out about a large data file, kept on disk so that the next start need not look again.

Beside the file, in `FILE.index/`, so that the nodes of a cluster share it; where that cannot be written, in the cache
folder of the user; where neither can, in memory. Named after the size and time of the file and the version of the
reader: a changed file is looked at anew. Written whole or not at all, so that processes may write it at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def keep_index(
    source: Path, name: str, *, key: tuple[object, ...], build: Callable[[], tuple[np.ndarray, dict[str, Any]]]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Return (array as a read-only memory map, notes) that `build` makes of `source`, from disk where they are there.

    `key` says what they depend on beside the size and time of the file: the version of the reader, a folder.
    """
    status = source.stat()
    digest = hashlib.sha256(json.dumps([status.st_size, status.st_mtime_ns, *map(str, key)]).encode()).hexdigest()[:16]
    for folder in _places(source):
        found = _load(folder, f"{name}-{digest}")
        if found is not None:
            return found
    array, notes = build()
    for folder in _places(source):
        if _save(folder, f"{name}-{digest}", array, notes):
            _drop_others(folder, name, digest)
            return _load(folder, f"{name}-{digest}") or (array, notes)
    return array, notes


def _places(source: Path) -> Iterator[Path]:
    yield source.with_name(source.name + ".index")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    place = hashlib.sha256(str(source.resolve()).encode()).hexdigest()[:16]
    yield Path(home) / "debias_sd" / f"{source.name}-{place}.index"


def _load(folder: Path, stem: str) -> tuple[np.ndarray, dict[str, Any]] | None:
    """The index on disk, or None where it is not there or not whole."""
    try:
        array = np.load(folder / f"{stem}.npy", mmap_mode="r", allow_pickle=False)
        return array, json.loads((folder / f"{stem}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # ValueError: a damaged file is made again
        return None


def _save(folder: Path, stem: str, array: np.ndarray, notes: dict[str, Any]) -> bool:
    """Write notes and array, the array last; say whether that was possible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(folder / f"{stem}.json", json.dumps(notes).encode())
        _write(folder / f"{stem}.npy", array)
    except OSError:  # read-only or full
        return False
    return True


def _write(path: Path, content: bytes | np.ndarray) -> None:
    descriptor, scratch = tempfile.mkstemp(dir=path.parent, prefix=".partial-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                np.save(file, content, allow_pickle=False)
        os.chmod(scratch, 0o644)  # mkstemp's 0o600 would shut the other users of a shared folder out
        os.replace(scratch, path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def _drop_others(folder: Path, name: str, digest: str) -> None:
    """Remove what an earlier state of the file left."""
    for old in folder.glob(f"{name}-*"):
        if not old.stem.endswith(digest):
            old.unlink(missing_ok=True)


def pack_array(array: np.ndarray) -> Path | np.ndarray:
    """What to pickle for `array`: the name of its file where it is memory-mapped, so that a worker maps it itself."""
    return Path(array.filename) if isinstance(array, np.memmap) else array


def unpack_array(packed: Path | np.ndarray) -> np.ndarray:
    """The array that was packed."""
    return np.load(packed, mmap_mode="r", allow_pickle=False) if isinstance(packed, Path) else packed
