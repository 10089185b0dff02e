"""Plots of retrieval reports: R@1 by probe, by sentences in front, by words read; published curves in grey.

matplotlib is optional (`pip install matplotlib`) and loaded when a plot is made.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from debias_sd.measure.reports.tables import Entry, published_tables
from debias_sd.probes import GROUPS
from debias_sd.report import RETRIEVAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0969da", "#cf222e", "#1a7f37", "#8250df", "#bf8700", "#0f7b8a")
GREY = "#8c959f"
_LABELS = {"t2i": "R@1, text to image, %", "i2t": "R@1, image to text, %"}


def make_plots(entries: list[Entry]) -> dict[str, bytes]:
    """PNG files by name, for every set, direction and family of probes that was measured in more than one way.

    ValueError with one sentence where matplotlib is not installed and there is something to draw.
    """
    on_sets = [entry for entry in entries if entry.report.kind == RETRIEVAL]
    plots = {}
    for data in dict.fromkeys(data for entry in on_sets for data in entry.result["sets"]):
        having = [entry for entry in on_sets if data in entry.result["sets"]]
        for way in _LABELS:
            for name, draw in _DRAWN.items():
                lines = {entry.label: _values(entry, data, GROUPS[name], way) for entry in having}
                if max(map(len, lines.values())) > 1:
                    plots[f"{data}-{name}-{way}.png"] = draw_png(partial(draw, lines, data, way), _LABELS[way])
    return plots


def _values(entry: Entry, data: str, probes: tuple[str, ...], way: str) -> dict[str, tuple[float, float, float]]:
    """R@1 with its interval by probe."""
    found = {name: probe[way] for name, probe in entry.result["sets"][data]["probes"].items() if name in probes}
    bounds = {name: scores.get("intervals", {}).get("r1", [scores["r1"]] * 2) for name, scores in found.items()}
    return {name: (found[name]["r1"], *bounds[name]) for name in probes if name in found}


Lines = dict[str, dict[str, tuple[float, float, float]]]


def _bars(lines: Lines, data: str, way: str, axes: Axes) -> None:
    names = list(dict.fromkeys(name for values in lines.values() for name in values))
    width = 0.8 / len(lines)
    for number, (label, values) in enumerate(lines.items()):
        places = [names.index(name) + (number - (len(lines) - 1) / 2) * width for name in values]
        heights = [value for value, _, _ in values.values()]
        errors = [
            [max(0.0, v - low) for v, low, _ in values.values()],
            [max(0.0, high - v) for v, _, high in values.values()],
        ]
        colour = COLOURS[number % len(COLOURS)]
        axes.bar(
            places,
            heights,
            0.92 * width,
            yerr=errors,
            color=colour,
            label=legend_name(label),
            error_kw={"lw": 1, "capsize": 2},
        )
    axes.set_xticks(range(len(names)), names)
    _mark_published(names, data, way, axes)


def _mark_published(names: list[str], data: str, way: str, axes: Axes) -> None:
    """Published values as grey lines across a probe's bars, the model's name beside the last one."""
    marked = set()
    for row in (row for table in published_tables() for row in table.rows):
        values = {name: row.values[data, name, way] for name in names if (data, name, way) in row.values}
        if len(values) < 2 or row.name in marked:  # a single value is in the tables
            continue
        marked.add(row.name)
        for probe, value in values.items():
            axes.hlines(value, names.index(probe) - 0.42, names.index(probe) + 0.42, color=GREY, lw=0.9)
        last, value = list(values.items())[-1]
        place = (names.index(last) + 0.44, value)
        axes.annotate(f"{row.name}, published", place, fontsize=7, color="#57606a", va="center")


def _curve(prefix: str, xlabel: str) -> Callable[[Lines, str, str, Axes], None]:
    def draw(lines: Lines, data: str, way: str, axes: Axes) -> None:
        for number, (label, values) in enumerate(lines.items()):
            places = [int(name.removeprefix(prefix)) for name in values]
            middle, low, high = zip(*values.values(), strict=True) if values else ((), (), ())
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(places, middle, color=colour, marker="o", markersize=3.5, label=legend_name(label))
            axes.fill_between(places, low, high, color=colour, alpha=0.13, lw=0)
        for table in published_tables():
            for row in table.rows:
                points = {key[1]: value for key, value in row.values.items() if key[0] == data and key[2] == way}
                points = {int(name.removeprefix(prefix)): v for name, v in points.items() if name.startswith(prefix)}
                if points:
                    axes.plot(*zip(*points.items(), strict=True), color=GREY, ls="--", lw=1)
                    axes.annotate(f"{row.name}, published", (0, points[0]), fontsize=8, color="#57606a", va="bottom")
        axes.set_xlabel(xlabel)

    return draw


_DRAWN = {
    "debias": _bars,
    "pads": _curve("pads", "pads in front of the caption"),
    "hyfl": _bars,
    "padding": _curve("photo", 'times "This is a photo." in front of the first two sentences'),
    "length": _curve("words", "words read"),
}


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
