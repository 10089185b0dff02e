"""Reports of retrieval on sets: tables with published rows beside ours, plots, and captions that encoders fail on.

Published R@1 of the models that this project is compared with comes from one data file, published.json. A row belongs
to an encoder whose name is the row's id, with or without a training seed: `debias-b16`, `debias-b16-s0`. Plots are R@1
by probe, by sentences in front, by words read; published curves are grey.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.measure.reports.page import (
    COLOURS,
    NONE,
    Entry,
    Gallery,
    Shown,
    Table,
    cell,
    draw_png,
    interval_cell,
    is_jpeg,
    legend_name,
)
from debias_sd.probes import GROUPS
from debias_sd.report import RETRIEVAL, split_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PUBLISHED_WAYS = ("t2i", "i2t")
_FILE = Path(__file__).with_name("published.json")
WAYS = {"t2i": "text to image", "i2t": "image to text"}
GREY = "#8c959f"
_LABELS = {"t2i": "R@1, text to image, %", "i2t": "R@1, image to text, %"}
Lines = dict[str, dict[str, tuple[float, float, float]]]


@dataclasses.dataclass(frozen=True)
class PublishedRow:
    """One model of one published table; `values` are R@1 in percent by (set, probe, direction)."""

    id: str
    name: str
    values: dict[tuple[str, str, str], float]


@dataclasses.dataclass(frozen=True)
class PublishedTable:
    """One published table or figure."""

    title: str
    source: str
    rows: tuple[PublishedRow, ...]

    def columns(self, *, way: str) -> list[tuple[str, str]]:
        """The (set, probe) pairs that some row has a value of, in the table's order."""
        found = (key[:2] for row in self.rows for key in row.values if key[2] == way)
        return list(dict.fromkeys(found))


@functools.cache
def published_tables() -> tuple[PublishedTable, ...]:
    """All tables of the data file."""
    tables = json.loads(_FILE.read_text(encoding="utf-8"))["tables"]
    return tuple(PublishedTable(t["title"], t["source"], tuple(map(_row, t["rows"]))) for t in tables)


def _row(row: dict) -> PublishedRow:
    values = {}
    for key, pair in row["t2i_i2t"].items():
        data, probe = key.split("/")
        values |= {
            (data, probe, way): value for way, value in zip(PUBLISHED_WAYS, pair, strict=True) if value is not None
        }
    return PublishedRow(row["id"], row["name"], values)


def published_value(encoder: str, data: str, probe: str, way: str) -> float | None:
    """The published R@1 of the model that an encoder is named after, or None.

    >>> published_value("debias-b16-s0", "docci", "move", "t2i"), published_value("mine", "docci", "move", "t2i")
    (76.68, None)
    """
    recipe, _ = split_name(encoder)
    for table in published_tables():
        for row in table.rows:
            if row.id in (recipe, encoder) and (data, probe, way) in row.values:
                return row.values[data, probe, way]
    return None


def retrieval_tables(entries: list[Entry]) -> list[Table]:
    """The sets, published tables with ours, differences; of the entries that are retrieval on sets."""
    on_sets = [entry for entry in entries if entry.report.kind == RETRIEVAL]
    return [*set_tables(on_sets), *published_comparisons(on_sets), *difference_tables(on_sets)]


def set_tables(entries: list[Entry]) -> Iterator[Table]:
    """For every set and direction: each encoder's recalls and ranks, then R@1 under every probe."""
    for data in dict.fromkeys(data for entry in entries for data in entry.result["sets"]):
        having = [entry for entry in entries if data in entry.result["sets"]]
        others = [what for what in ("captions", "pictures") if _differs(having, data, what)]
        notes = list(dict.fromkeys(note for entry in having for note in entry.result["sets"][data]["notes"]))
        if others:
            what = " and ".join(others)
            notes.insert(0, f"The reports were measured on different {what}: these rows cannot be compared.")
        for way, words in WAYS.items():
            rows = tuple(
                (entry.label, *_score_cells(entry.result["sets"][data]["probes"]["keep"][way])) for entry in having
            )
            head = ("", "R@1", "95 %", "R@5", "R@10", "median rank", "mean rank")
            yield Table(f"{data}, {words}", " ".join(notes), head, rows)
            probes = list(dict.fromkeys(probe for e in having for probe in e.result["sets"][data]["probes"]))
            if len(probes) > 1:
                found = {e.label: [_r1(e, data, probe, way) for probe in probes] for e in having}
                rows = tuple((probe, *(cell(values[n]) for values in found.values())) for n, probe in enumerate(probes))
                yield Table(f"{data}, {words}: R@1 under each probe", "", ("probe", *found), rows)


def _differs(entries: list[Entry], data: str, what: str) -> bool:
    """Whether entries have different captions or pictures; reports made before pictures had a hash do not say."""
    name = {"captions": "texts_sha256", "pictures": "pictures_sha256"}[what]
    return len({entry.result["sets"][data].get(name) for entry in entries} - {None}) > 1


def _score_cells(scores: Mapping[str, Any]) -> list[str]:
    bounds = scores.get("intervals", {}).get("r1")
    range_ = NONE if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"
    cells = [f"{scores['r1']:.2f}", range_, f"{scores['r5']:.2f}", f"{scores['r10']:.2f}"]
    return [*cells, cell(scores.get("median_rank"), ".1f"), f"{scores['mean_rank']:.2f}"]


def _r1(entry: Entry, data: str, probe: str, way: str) -> float | None:
    return entry.result["sets"].get(data, {}).get("probes", {}).get(probe, {}).get(way, {}).get("r1")


def published_comparisons(entries: list[Entry]) -> Iterator[Table]:
    """Every published table of which something was measured: its rows, ours below, and our difference where named."""
    for table in published_tables():
        for way, words in WAYS.items():
            wanted = table.columns(way=way)
            columns = [c for c in wanted if any(_r1(entry, *c, way) is not None for entry in entries)]
            if not columns:
                continue
            rows = [(row.name, *(cell(row.values.get((*c, way)), "g") for c in columns)) for row in table.rows]
            for entry in entries:
                values = [_r1(entry, *c, way) for c in columns]
                rows.append((f"**{entry.label}**", *map(cell, values)))
                known = [published_value(entry.name, *c, way) for c in columns]
                if any(value is not None for value in known):
                    cells = [
                        NONE if ours is None or theirs is None else f"{ours - theirs:+.2f}"
                        for ours, theirs in zip(values, known, strict=True)
                    ]
                    rows.append((f"{entry.label} - published", *cells))
            heads = [data if probe == "keep" and len(columns) > 3 else f"{data} {probe}" for data, probe in columns]
            others = [data for data in dict.fromkeys(c[0] for c in columns) if any(_is_other(e, data) for e in entries)]
            note = f"R@1 in percent. Published: {table.source}. In bold: measured here."
            note += f" **Not the published pool: {', '.join(others)}.**" if others else ""
            yield Table(f"{table.title}, {words}", note, ("", *heads), tuple(rows))


def _is_other(entry: Entry, data: str) -> bool:
    """Whether an encoder was measured on another pool than the published one."""
    found = entry.result["sets"].get(data)
    return found is not None and found["pool"] != found["published_pool"]


def difference_tables(entries: list[Entry]) -> Iterator[Table]:
    """The paired differences of R@1 within each report."""
    for report in {id(entry.report): entry.report for entry in entries}.values():
        rows = []
        for data, pairs in report.extra.get("differences", {}).items():
            for pair, probes in pairs.items():
                for probe, ways in probes.items():
                    cells = [interval_cell(ways[way]["intervals"]["r1"]) for way in WAYS]
                    rows.append((f"{data}: {pair}", probe, *cells))
        if rows:
            note = "95 % of paired bootstrap draws of pictures; clear of 0 in bold."
            yield Table("Differences of R@1", note, ("", "probe", *WAYS.values()), tuple(rows))


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
