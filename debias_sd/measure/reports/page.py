"""What reports are made of: tables, plots and galleries of small pictures, as Markdown, PNG and one HTML page.

Tables are text, made from the JSON alone, of one report or several side by side. A kind of report that has no tables of
its own is shown by the numbers that its encoders have in common, so that a new measurement needs nothing here.
matplotlib is optional (`pip install matplotlib`) and loaded when a plot is made. The page needs nothing beside it: no
script, no font, no picture elsewhere.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import html
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.datasets.pictures import PictureFault, read_rgb
from debias_sd.datasets.records import Picture
from debias_sd.report import Report

if TYPE_CHECKING:
    pass

NONE = "–"
_NOT_SHOWN = ("seconds", "window")
_DEPTH = 4
COLOURS = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#0f7b8a")
SIDE = 112  # of a small picture, the longer one: about 4 kB
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


@dataclasses.dataclass(frozen=True)
class Table:
    """A title, the words under it, column heads (the first is the rows' own) and rows of text."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_markdown(self) -> str:
        """The table under its title."""
        lines = [f"### {self.title}", "", *([self.note, ""] if self.note else [])]
        for place, row in enumerate((self.columns, *self.rows)):
            lines.append("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |")
            lines += ["|---" * len(self.columns) + "|"] if place == 0 else []
        return "\n".join(lines) + "\n"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One encoder of one report; `label` tells it from one of the same name in another report."""

    label: str
    name: str
    report: Report
    result: Mapping[str, Any]


def read_entries(paths: list[Path]) -> list[Entry]:
    """Every encoder of the reports; ValueError for a file that is not a report."""
    reports = [(path, Report.read(path)) for path in paths]
    named = [name for _, report in reports for name in report.encoders]
    entries = []
    for path, report in reports:
        for name, result in report.encoders.items():
            label = name if named.count(name) == 1 else f"{name} ({path.stem})"
            entries.append(Entry(label, name, report, result))
    labels = [entry.label for entry in entries]
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise ValueError(f"two reports give {twice}; rename one of the files, or give each only once.")
    return entries


def cell(value: float | None, form: str = ".2f") -> str:
    """A number as text, a dash where there is none."""
    return NONE if value is None else format(value, form)


def interval_cell(bounds: list[float]) -> str:
    """An interval of a difference, bold where it is clear of 0."""
    text = f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"
    return f"**{text}**" if bounds[0] > 0 or bounds[1] < 0 else text


def number_table(kind: str, entries: list[Entry]) -> Table:
    """The numbers of another kind of report, a row each, one column per encoder."""
    found = {entry.label: dict(_numbers(entry.result)) for entry in entries}
    names = list(dict.fromkeys(name for numbers in found.values() for name in numbers))
    rows = tuple((name, *(cell(numbers.get(name), ".4g") for numbers in found.values())) for name in names)
    return Table(kind, "", ("", *found), rows)


def _numbers(result: Mapping[str, Any], path: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, float]]:
    for key, value in result.items():
        if isinstance(value, Mapping) and depth > 1:
            yield from _numbers(value, f"{path}{key} ", depth - 1)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and key not in _NOT_SHOWN:
            yield path + key, float(value)


def settings_table(entries: list[Entry]) -> Table:
    """Where every number comes from."""
    rows = []
    for entry in entries:
        report = entry.report
        versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
        rows.append(
            (
                entry.label,
                entry.result.get("sha256", NONE)[:10],
                f"`{report.command}`",
                f"{report.seconds:.0f}",
                versions,
            )
        )
    return Table("Where the numbers come from", "", ("", "weights", "command", "s", "versions"), tuple(rows))


def legend_name(label: str) -> str:
    """An encoder's name as matplotlib shows it as it is: a dollar starts a formula there, an underscore hides it.

    >>> legend_name("_a$b")
    ' _a\\\\$b'
    """
    return (" " if label.startswith("_") else "") + label.replace("$", r"\$")


def draw_png(draw: Callable[[Any], None], ylabel: str, *, dpi: int = 110) -> bytes:
    """One plot as PNG; ValueError where matplotlib is not installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError("plots need matplotlib, which is not installed; install it: pip install matplotlib.") from None
    figure = Figure(figsize=(9.6, 4.2), dpi=dpi, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    draw(axes)
    axes.set_ylabel(ylabel)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d0d7de", linewidth=0.6)
    axes.set_axisbelow(True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", frameon=False, fontsize=9)
    content = io.BytesIO()
    with warnings.catch_warnings():
        # A name in letters that the font lacks gets boxes for them; the tables have it whole.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        canvas.print_png(content, metadata={"Software": None})  # Figure.savefig draws everything twice
    return content.getvalue()


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
