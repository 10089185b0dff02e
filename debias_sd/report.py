"""Reports: what was measured, with everything that is needed to measure it again, as one JSON file.

A report holds one `kind` of measurement for one or more named encoders. Names follow one scheme, on which
`scripts/results.py` groups: `<recipe>-s<training seed>`, for example `debias-l0.1-s2`, or `-f<seed>` where only the
fine-tuning has another seed. Numbers of `docs/results.md` come from these files only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from debias_sd.text import decode_text, parse_json

RETRIEVAL, ATTENTION, FIDELITY, JUDGE = "retrieval", "attention", "fidelity", "judge"  # kinds, as the commands measure
_FORMER_KINDS = {"retrieval-sets": RETRIEVAL, "reading": ATTENTION, "fidelity-judged": FIDELITY}
_PACKAGES = ("debias-sd", "torch", "transformers", "diffusers", "numpy")
_SEEDED = re.compile(r"(?P<recipe>.+)-(?P<seed>[sf]\d+)")


@dataclasses.dataclass(frozen=True)
class Report:
    """One measurement: `encoders` maps an encoder's name to its results, `settings` holds all that was chosen."""

    kind: str
    settings: dict[str, Any]
    encoders: dict[str, dict[str, Any]]
    command: str = ""
    seconds: float = 0.0
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=lambda: installed_versions())

    def write(self, path: str | Path) -> Path:
        """Write the report as JSON, whole or not at all; ValueError when the folder cannot be written to."""
        text = json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)
        return write_atomically(path, (text + "\n").encode())

    @classmethod
    def read(cls, path: str | Path) -> Report:
        """Read a report back; ValueError when the file is not one."""
        try:
            found = cls(**parse_json(decode_text(Path(path).read_bytes(), path)))
            return dataclasses.replace(found, kind=_FORMER_KINDS.get(found.kind, found.kind))
        except FileNotFoundError:
            raise ValueError(f"report {path} does not exist; make it with `debias-sd evaluate`.") from None
        except (TypeError, ValueError):
            raise ValueError(f"file {path} is not a report of `debias-sd evaluate`; make it again.") from None
        except OSError as error:
            raise ValueError(f"report {path} cannot be read ({error.strerror}); check the path.") from None


def write_atomically(path: str | Path, content: bytes, *, by_way_of: Path | None = None) -> Path:
    """Write `content` to `path` by way of a temporary file beside it, so that no half file is ever left.

    `by_way_of`: another folder of the same disk for the temporary file, where everything beside `path` is read.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        (by_way_of or path.parent).mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=by_way_of or path.parent, prefix=".debias-sd-")
    except OSError as error:
        raise ValueError(
            f"folder {path.parent} cannot be written to ({error.strerror}); choose another place for {path.name}."
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(scratch, 0o644)
        os.replace(scratch, path)
    except OSError as error:
        Path(scratch).unlink(missing_ok=True)
        raise ValueError(f"file {path} cannot be written ({error.strerror}); choose another path.") from error
    return path


def command_line() -> str:
    """The command as typed, with paths inside the working folder relative: a report is read on other machines."""
    return relative("debias-sd " + " ".join(sys.argv[1:]))


def relative(text: str) -> str:
    """`text` without the working folder in front of the paths in it."""
    return text.replace(f"{Path.cwd()}/", "")


def installed_versions() -> dict[str, str]:
    """Versions of Python, the machine's architecture and the packages that the numbers depend on."""
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        versions[package] = metadata.version(package)
    return versions


def source_commit(file: str | Path) -> str:
    """The commit of the source tree that `file` is in, with `+changes` when files differ from it; `unknown` without."""
    package = Path(file).parent
    try:
        run = {"cwd": package, "capture_output": True, "text": True, "check": True}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **run).stdout.strip()
        # Without a lock: `status` rewrites the index, and a process that is ended there would leave its lock behind.
        status = ["git", "--no-optional-locks", "status", "--porcelain", "-uno", "--", ".."]
        changed = subprocess.run(status, **run).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changed else "")


def hash_file(path: str | Path) -> str:
    """SHA-256 of a file, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_texts(texts: list[str]) -> str:
    """SHA-256 of texts, in hex: two reports with the same value were measured on the same texts."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def split_name(name: str) -> tuple[str, str | None]:
    """Split an encoder's name into its recipe and its training seed (None when the name gives none).

    >>> split_name("debias-l0.1-s2"), split_name("debias-l0.1-f1"), split_name("debias")
    (('debias-l0.1', 's2'), ('debias-l0.1', 'f1'), ('debias', None))
    """
    match = _SEEDED.fullmatch(name)
    return (match["recipe"], match["seed"]) if match else (name, None)


def check_writable(path: str | Path) -> None:
    """Raise ValueError before long work when its result could not be written to `path`; nothing is left behind."""
    path = Path(path)
    try:
        is_folder = path.is_dir()
        nearest = next(parent for parent in path.absolute().parents if parent.exists())
        # Permission bits say nothing to root or of a read-only disk.
        tempfile.TemporaryFile(dir=nearest).close()
    except OSError as error:
        raise ValueError(
            f"folder {path.parent} cannot be written to ({error.strerror}); choose another place for {path.name}."
        ) from error
    if is_folder:
        raise ValueError(f"path {path} is a folder but must be a file name; add one, e.g. {path / 'report.json'}.")
