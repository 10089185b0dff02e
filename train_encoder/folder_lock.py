"""One run at a time in a folder: a second one would write over the first one's log and checkpoints."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


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
