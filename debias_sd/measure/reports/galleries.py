"""Small pictures in reports, and galleries of them for the HTML page: captions that encoders fail on."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import io

from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.datasets.records import Picture
from debias_sd.measure.reports.tables import Entry
from debias_sd.report import RETRIEVAL

SIDE = 112  # of a small picture, the longer one: about 4 kB


@dataclasses.dataclass(frozen=True)
class Shown:
    """One small picture, JPEG in base64, and the words under it."""

    words: str
    jpeg: str


@dataclasses.dataclass(frozen=True)
class Gallery:
    """A title, and rows of a text with its pictures."""

    title: str
    rows: tuple[tuple[str, tuple[Shown, ...]], ...]


def example_galleries(entries: list[Entry]) -> list[Gallery]:
    """The worst captions of every set and encoder: the picture that belongs to each, and the one found first."""
    galleries = []
    for entry in (entry for entry in entries if entry.report.kind == RETRIEVAL):
        for data, found in entry.result["sets"].items():
            pictures = entry.report.extra.get("pictures", {}).get(data, {})
            rows = []
            for example in found.get("examples", []):
                words = {"picture": f"its own, rank {example['rank']:,}", "first": "found first"}
                shown = [Shown(text, pictures.get(str(example[key])) or "") for key, text in words.items()]
                rows.append((example["caption"], tuple(one for one in shown if is_jpeg(one.jpeg))))
            if rows:
                galleries.append(Gallery(f"{data}: captions that {entry.label} fails on", tuple(rows)))
    return galleries


def is_jpeg(content: str) -> bool:
    """Whether a report's text is a picture: nothing else from a report gets into an address on the page."""
    try:
        return base64.b64decode(content, validate=True).startswith(b"\xff\xd8\xff")
    except (binascii.Error, ValueError):
        return False


def thumbnail(picture: Picture) -> str | None:
    """A small JPEG in base64; None for a picture that cannot be read any more."""
    try:
        small = read_rgb(picture)
    except PictureFault:
        return None
    small.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    return base64.b64encode(content.getvalue()).decode("ascii")
