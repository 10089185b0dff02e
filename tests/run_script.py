"""A script runs as `python` runs it, but in this process: a new one takes seconds to import anything."""

import runpy
import sys
from pathlib import Path
from unittest import mock


def run_script(path: Path, *arguments: object) -> int:
    """Run `python path arguments`; returns the exit code."""
    command, places = [str(path), *map(str, arguments)], [str(path.parent), *sys.path]
    with mock.patch.object(sys, "argv", command), mock.patch.object(sys, "path", places):
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
                return 1
            return end.code or 0
    return 0
