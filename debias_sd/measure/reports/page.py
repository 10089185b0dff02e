"""Tables and plots as one HTML page that needs nothing beside it: no script, no font, no picture elsewhere.

Small pictures in reports, and galleries of them for the HTML page: captions that encoders fail on.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import html
import io
import re
from collections.abc import Mapping, Sequence

from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.datasets.records import Picture
from debias_sd.measure.reports.tables import Entry, Table
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


_STYLE = """
:root { color-scheme: light dark; --rule: #d0d7de; --soft: #57606a; --band: #f6f8fa; }
@media (prefers-color-scheme: dark) { :root { --rule: #39424e; --soft: #9aa4af; --band: #1b222c; } }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 .6rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right; }
th:first-child, td:first-child { text-align: left; }
tbody tr:nth-child(even) { background: var(--band); }
img { max-width: 100%; background: #fff; border-radius: 6px; }
.example { display: flex; gap: 1rem; align-items: flex-start; margin: .8rem 0; flex-wrap: wrap; }
.example p { flex: 1 1 18rem; }
figure { margin: 0; } figcaption { font-size: .8em; color: var(--soft); }
code { font-size: .85em; overflow-wrap: anywhere; }
"""


def make_page(
    title: str, tables: Sequence[Table], plots: Mapping[str, bytes], galleries: Sequence[Gallery] = ()
) -> str:
    """Return the page: plots (PNG by file name) first, then every table, then pictures with their texts."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    for name, content in plots.items():
        address = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
        words = name.removesuffix(".png")
        parts.append(f"<h2>{html.escape(words)}</h2>")
        parts.append(f'<img alt="{html.escape(words)}; the numbers are in the tables" src="{address}">')
    return "\n".join([*parts, *map(_table_html, tables), *map(_gallery_html, galleries), "</body></html>", ""])


def _gallery_html(gallery: Gallery) -> str:
    rows = []
    for text, pictures in gallery.rows:
        figures = "".join(
            f'<figure><img alt="" src="data:image/jpeg;base64,{shown.jpeg}">'
            f"<figcaption>{html.escape(shown.words)}</figcaption></figure>"
            for shown in pictures
        )
        rows.append(f'<div class="example">{figures}<p>{html.escape(text)}</p></div>')
    return f"<h2>{html.escape(gallery.title)}</h2>\n" + "\n".join(rows)


def _table_html(table: Table) -> str:
    head = "".join(f'<th scope="col">{_inline(cell)}</th>' for cell in table.columns)
    rows = "\n".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    note = f"<p>{_inline(table.note)}</p>\n" if table.note else ""
    return (
        f"<h2>{_inline(table.title)}</h2>\n{note}"
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'
    )


def _inline(text: str) -> str:
    """Escaped text with Markdown's bold and code."""
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", html.escape(text))
    return re.sub(r"`(.+?)`", r"<code>\1</code>", text)
