"""Parts of one large file by their offsets: what lets a reader hold a million records in 12 bytes each."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np


class FileSlices:
    """`slices[i]`: the bytes of part i, read when asked for.

    `starts` int64 [n] and `sizes` int32 [n] may be memory maps. Reads are by position, so forked workers may share the
    open file; pickling leaves it out.
    """

    def __init__(self, path: Path, starts: np.ndarray, sizes: np.ndarray) -> None:
        self.path, self.starts, self.sizes = path, starts, sizes
        self._descriptor: int | None = None

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> bytes:
        size = int(self.sizes[index])
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        content = os.pread(self._descriptor, size, int(self.starts[index]))
        if len(content) < size:
            raise ValueError(f"{self.path} became shorter while it was read; leave data files alone during a run.")
        return content

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_descriptor": None}

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            os.close(self._descriptor)
