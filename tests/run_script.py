"""Scripts and modules run as `python` runs them, but in this process: a new one takes seconds to import anything."""

import runpy
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest import mock


def run_script(path: Path, *arguments: object) -> int:
    """Run `python path arguments`; returns the exit code."""
    with mock.patch.object(sys, "path", [str(path.parent), *sys.path]):
        return _exit_code(partial(runpy.run_path, str(path)), path, *arguments)


def run_module(name: str, *arguments: object) -> int:
    """Run `python -m name arguments`; returns the exit code."""
    return _exit_code(partial(runpy.run_module, name, alter_sys=True), name, *arguments)


def _exit_code(run: Callable[..., object], *command: object) -> int:
    with mock.patch.object(sys, "argv", list(map(str, command))):
        try:
            run(run_name="__main__")
        except SystemExit as end:
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
                return 1
            return end.code or 0
    return 0
