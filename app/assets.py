"""The app's own style sheet and scripts, as text."""

from __future__ import annotations

from pathlib import Path


def read_asset(name: str) -> str:
    """The text of a file beside this one: style.css or one of the scripts."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
