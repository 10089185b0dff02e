"""What a command says: its result on standard output, warnings on standard error. Printing never ends the work."""

import errno
import io
import json
import logging
import os
import sys

_CLOSED = (errno.EPIPE, errno.EINVAL)  # EINVAL: a closed pipe on Windows


class _Descriptor(io.FileIO):
    """A file descriptor whose first failure is kept instead of raised; what is written after it goes nowhere."""

    fault: OSError | None = None

    def write(self, data: bytes) -> int:
        if self.fault is None:
            try:
                return super().write(data)
            except OSError as error:
                self.fault = error
        return len(data)


def open_terminal() -> None:
    """Make printing safe in this process: no character, closed pipe or full disk raises. Every `main` calls it first.

    What the output's encoding lacks becomes "?". Results are in their files by then, and hours of work are in them.
    """
    sys.stdout, sys.stderr = _safe(sys.stdout), _safe(sys.stderr)


def _safe(stream: io.TextIOBase | None) -> io.TextIOBase:
    if stream is None:  # closed by the caller (`>&-`), or a Windows program without a console
        return open(os.devnull, "w", encoding="utf-8")
    raw = _raw(stream)
    if isinstance(raw, io.FileIO) and not isinstance(raw, _Descriptor):
        stream.flush()
        raw = _Descriptor(stream.fileno(), "w", closefd=False)
        through = stream.write_through  # python -u
        return io.TextIOWrapper(
            raw if through else io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors="replace",
            line_buffering=stream.line_buffering,
            write_through=through,
        )
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    return stream


def _raw(stream: io.TextIOBase) -> object:
    """Return the descriptor that one of Python's own streams writes to, None for what replaces it."""
    buffer = stream.buffer if type(stream) is io.TextIOWrapper else None
    return getattr(buffer, "raw", buffer)


def lost_output() -> str | None:
    """Return why standard output could not be written, None when it was or when its reader left (`| head`)."""
    sys.stdout.flush()
    fault = getattr(_raw(sys.stdout), "fault", None)
    return None if fault is None or fault.errno in _CLOSED else fault.strerror


def shows_unicode() -> bool:
    """Return whether standard output takes every character."""
    return (sys.stdout.encoding or "").lower().replace("-", "").replace("_", "") == "utf8"


def say(text: str) -> None:
    """Write one result, at once: a pipe's reader may wait for it."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say_json(content: object) -> None:
    """Write one result as JSON, in ASCII where the output would lose characters."""
    say(json.dumps(content, indent=2, ensure_ascii=not shows_unicode()))


def warn(text: str) -> None:
    """Write one warning."""
    sys.stderr.write(f"debias-sd: warning: {text}\n")


def refuse(text: str, *, program: str = "debias-sd") -> int:
    """Write why nothing was done, one sentence, and return the exit code of a user's fault."""
    sys.stderr.write(f"{program}: error: {text}\n")
    return 2


def quiet_loading() -> None:
    """Leave out the progress bars and notes of loading, so that an error is one sentence on standard error."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bars()
    disable_progress_bar()
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
