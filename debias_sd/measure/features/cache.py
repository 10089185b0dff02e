"""Features on disk, found by the content of the encoder and of what it read, so that nothing is embedded twice.

`<folder>/<encoder key>/<random name>.features`: one file a flush, whole or not there, never changed; two NumPy arrays,
the keys [n, 16] and the features [n, dim]. Keys are read, features are mapped and only touched where asked for. A
damaged file counts as not there. Another encoder, another preprocessing or device has another key and folder.
"""

from __future__ import annotations

import hashlib
import io
import os
import uuid
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from debias_sd.report import write_atomically

SUFFIX = ".features"
KEY_BYTES = 16


def cache_folder() -> Path:
    """Where features lie unless the user says otherwise: `debias_sd/features` in the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "debias_sd" / "features"


def key_of(content: bytes) -> bytes:
    """The key of a text or a picture: 16 bytes of its SHA-256."""
    return hashlib.sha256(content).digest()[:KEY_BYTES]


class FeatureCache:
    """The features of one encoder; `folder` None keeps them in memory alone, for one run."""

    def __init__(self, folder: Path | None, encoder_key: str) -> None:
        self.folder = None if folder is None else folder / encoder_key[:32]
        self.damaged = 0
        self.fault = ""  # why features are no longer kept on disk
        self._known: dict[bytes, np.ndarray] = {}
        self._fresh: list[bytes] = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")) if self.folder is not None and self.folder.is_dir() else ():
            try:
                self._known.update(_open(path))
            except (OSError, ValueError, EOFError, MemoryError):  # the last one for a length that is damaged
                self.damaged += 1

    def __contains__(self, key: bytes) -> bool:
        return key in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, keys: Iterable[bytes], features: np.ndarray) -> None:
        """Keep features [n, dim] by their keys; on disk after `flush`."""
        for key, row in zip(keys, features, strict=True):
            self._known[key] = row
            self._fresh.append(key)

    def rows(self, keys: list[bytes]) -> np.ndarray:
        """Return the features [n, dim], float32, of keys that are all there."""
        return np.stack([self._known[key] for key in keys]).astype(np.float32, copy=False)

    def flush(self) -> None:
        """Write what was added since the last time as one file.

        A folder that cannot be written to (read-only, a full disk) costs no work: `fault` says so from then on.
        """
        fresh, self._fresh = self._fresh, []
        if self.folder is None or not fresh:
            return
        content = io.BytesIO()
        np.save(content, np.frombuffer(b"".join(fresh), np.uint8).reshape(-1, KEY_BYTES))
        np.save(content, self.rows(fresh))
        try:
            write_atomically(self.folder / f"{uuid.uuid4().hex}{SUFFIX}", content.getvalue())
        except ValueError as error:
            self.folder, self.fault = None, str(error)


def _open(path: Path) -> dict[bytes, np.ndarray]:
    """The keys of a file with their features, mapped; ValueError when the file is not whole."""
    with path.open("rb") as file:
        keys = np.load(file, allow_pickle=False)
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        start = file.tell()
    wrong = fortran or dtype != np.float32 or keys.dtype != np.uint8 or keys.ndim != 2 or keys.shape[1] != KEY_BYTES
    if wrong or len(shape) != 2 or len(keys) != shape[0] or path.stat().st_size != start + 4 * shape[0] * shape[1]:
        raise ValueError(f"{path} is no file of features")
    rows = np.memmap(path, np.float32, "r", offset=start, shape=shape)
    return {key.tobytes(): row for key, row in zip(keys, np.asarray(rows), strict=True)}
