"""A running app for tests: `python -m app` in a process of its own, and Debian's Chromium to look at it."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from tests.ctrl_c import hear_ctrl_c

ROOT = Path(__file__).parent.parent
_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("DEBIAS_SD_CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
# Without them Chromium asks its maker's servers for this and that, and a sandbox is not to be had as root.
CHROMIUM_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NO_APP = "gradio is not installed; pip install -e '.[app]'" if find_spec("gradio") is None else ""
NO_BROWSER = (
    "no browser: playwright is not installed"
    if find_spec("playwright") is None
    else "no browser: chromium is neither on PATH nor named by DEBIAS_SD_CHROMIUM"
    if CHROMIUM is None
    else ""
)
START_SECONDS = 240  # a free core takes about ten, a busy one many more


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running_app(log: Path, *options: str) -> Iterator[str]:
    """The address of an app that answers; it ends with the block. What it says goes to `log`."""
    with started_app(log, *options) as (address, _):
        yield address


@contextlib.contextmanager
def started_app(log: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The same, with its process.

    It begins without the example, which would be in the queue before the first test; option `--example` leaves it.
    """
    begin = [] if "--example" in options else ["--no-example"]
    options = [option for option in options if option != "--example"]
    port = free_port()
    command = [sys.executable, "-m", "app", "--port", str(port), *begin, *options]
    with log.open("w") as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, preexec_fn=hear_ctrl_c)
        try:
            _wait(f"http://127.0.0.1:{port}", process, log)
            yield f"http://127.0.0.1:{port}", process
        finally:
            process.terminate()
            process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the app answers."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, f"the app ended: {log.read_text()}"
        with contextlib.suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise AssertionError(f"the app did not answer in {START_SECONDS} s: {log.read_text()}")
