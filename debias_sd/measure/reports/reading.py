"""Reports of what encoders read, by place, as tables and plots: attention, sentences dropped, words, things swapped.

From the JSON alone. Values are relative to the caption (1: all places alike); the paper's figure of mean attention by
token position is a plot of its own, on a logarithmic axis as there (arXiv 2602.22419).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from debias_sd.measure.reports.page import COLOURS, NONE, Entry, Table, draw_png, interval_cell, legend_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WAYS = {"by_quarter": "quarter of the sentences", "by_sentence": "sentence", "by_words": "words in front"}
MEASURES = {
    "attention_all_layers": "attention, all layers",
    "attention_last_layer": "attention, last layer",
    "per_token_all_layers": "attention per token read, all layers",
    "per_token_last_layer": "attention per token read, last layer",
    "drop": "sentence dropped",
    "swap": "word swapped",
    "thing": "thing swapped",
}
_NOTHING = {"places": [], "mean": [], "low": [], "high": []}  # of a measure that a report lacks
_NOTE = (
    "In brackets 95 % of bootstrap draws of captions. Attention: share of it over share of the words; per token read: "
    "over that of all tokens that were read; a sentence dropped, a word or thing swapped: 1 - cosine of the embeddings "
    "before and after, over the caption's mean. 1: places alike."
)


def reading_tables(entries: list[Entry]) -> list[Table]:
    """For every set: each measure by place, one column per encoder; then the paired differences by quarter."""
    having = [entry for entry in entries if "reading" in entry.result]
    tables = []
    for label in dict.fromkeys(label for entry in having for label in entry.result["reading"]):
        read = {entry.label: entry.result["reading"][label] for entry in having if label in entry.result["reading"]}
        hashes = {result["texts_sha256"] for result in read.values()}
        other = "The reports were measured on different captions: these columns cannot be compared. "
        for way, words in WAYS.items():
            rows = list(_rows(read, way))
            note = (other if len(hashes) > 1 else "") + _NOTE
            tables.append(Table(f"{label}: what is read, by {words}", note, ("", words, *read), tuple(rows)))
    return tables + list(_difference_tables(having))


def _rows(read: Mapping[str, Mapping[str, Any]], way: str) -> Iterator[tuple[str, ...]]:
    for measure, words in MEASURES.items():
        found = {name: _spread(result, measure, way) for name, result in read.items()}
        for place in dict.fromkeys(place for spread in found.values() for place in spread["places"]):
            yield (words, place, *(_cell(spread, place) for spread in found.values()))


def _spread(result: Mapping[str, Any], measure: str, way: str) -> Mapping[str, list]:
    if measure in result:
        return result[measure]["relative"].get(way, _NOTHING)
    return result["attention"].get(measure.replace("attention_", "relative_"), {}).get(way, _NOTHING)


def _cell(spread: Mapping[str, list], place: str) -> str:
    if place not in spread["places"]:
        return NONE
    at = spread["places"].index(place)
    mean, low, high = (spread[key][at] for key in ("mean", "low", "high"))
    return f"{mean:.2f}" + ("" if low is None else f" ({low:.2f} to {high:.2f})")


def _difference_tables(entries: list[Entry]) -> Iterator[Table]:
    for report in {id(entry.report): entry.report for entry in entries}.values():
        rows = []
        for label, pairs in report.extra.get("reading_differences", {}).items():
            for pair, measures in pairs.items():
                for measure, ways in measures.items():
                    spread = ways["by_quarter"]
                    bounds = dict(zip(spread["places"], zip(spread["low"], spread["high"], strict=True), strict=True))
                    cells = [NONE if bounds.get(q, (None,))[0] is None else interval_cell(bounds[q]) for q in "1234"]
                    rows.append((f"{label}: {pair}", MEASURES[measure], *cells))
        if rows:
            note = "95 % of paired bootstrap draws of captions; clear of 0 in bold."
            head = ("", "", *(f"quarter {number}" for number in range(1, 5)))
            yield Table("Differences of what is read", note, head, tuple(rows))


def reading_plots(entries: list[Entry]) -> dict[str, bytes]:
    """PNG files by name; ValueError where matplotlib is not installed and there is something to draw."""
    plots = {}
    having = [entry for entry in entries if "reading" in entry.result]
    for label in dict.fromkeys(label for entry in having for label in entry.result["reading"]):
        read = {entry.label: entry.result["reading"][label] for entry in having if label in entry.result["reading"]}
        positions = {name: result["attention"]["positions"] for name, result in read.items()}
        drawing = partial(_position_lines, positions)
        plots[f"{label}-attention-position.png"] = draw_png(drawing, "mean attention of the pooled token")
        for measure in ("attention_all_layers", "drop", "swap", "thing"):
            for way in ("by_sentence", "by_words"):
                lines = {name: _spread(result, measure, way) for name, result in read.items()}
                name = f"{label}-{measure.removesuffix('_all_layers')}-{way.removeprefix('by_')}.png"
                if any(line["places"] for line in lines.values()):
                    plots[name] = draw_png(partial(_place_lines, lines, WAYS[way]), f"{MEASURES[measure]}, relative")
    return plots


def _position_lines(positions: Mapping[str, Mapping[str, list]], axes: Axes) -> None:
    """All layers as a line, the last one dotted; attention of exactly nothing has no place on such an axis."""
    for number, (name, curves) in enumerate(positions.items()):
        for layers, style in (("all_layers", "-"), ("last_layer", ":")):
            points = [(place, value) for place, value in enumerate(curves[layers]) if value > 0]
            label = name if layers == "all_layers" else f"{name}, last layer"
            axes.plot(
                *zip(*points, strict=True),
                style,
                color=COLOURS[number % len(COLOURS)],
                lw=1.3,
                label=legend_name(label),
            )
    axes.set_yscale("log")
    axes.set_xlabel("token position")


def _place_lines(lines: Mapping[str, Mapping[str, list]], xlabel: str, axes: Axes) -> None:
    names = list(dict.fromkeys(place for spread in lines.values() for place in spread["places"]))
    for number, (label, spread) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [names.index(place) for place in spread["places"]]
        axes.plot(places, spread["mean"], color=colour, marker="o", markersize=3.5, label=legend_name(label))
        known = [at for at, low in enumerate(spread["low"]) if low is not None]
        bounds = ([spread[key][at] for at in known] for key in ("low", "high"))
        axes.fill_between([places[at] for at in known], *bounds, color=colour, alpha=0.13, lw=0)
    axes.axhline(1, color="#8c959f", lw=0.8, ls="--")
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel(xlabel)
