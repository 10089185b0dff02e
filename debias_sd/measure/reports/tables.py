"""Reports as tables of text, for Markdown and HTML alike: made from the JSON alone, one or several side by side.

Retrieval on sets has its own tables, published rows beside ours. Every other kind of report is shown by the numbers
that its encoders have in common, so that a new measurement needs nothing here.

Published R@1 of the models that this project is compared with, from one data file, published.json.

A row belongs to an encoder whose name is the row's id, with or without a training seed: `debias-b16`, `debias-b16-s0`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from debias_sd.report import RETRIEVAL, Report, split_name

PUBLISHED_WAYS = ("t2i", "i2t")
_FILE = Path(__file__).with_name("published.json")


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


WAYS = {"t2i": "text to image", "i2t": "image to text"}
NONE = "–"
_NOT_SHOWN = ("seconds", "window")
_DEPTH = 4


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


TablesOf = Callable[[list[Entry]], Iterable[Table]]


def read_entries(paths: list[Path]) -> list[Entry]:
    """Every encoder of the reports; ValueError for a file that is no report."""
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


def make_tables(entries: list[Entry], shown: Mapping[str, TablesOf] | None = None) -> list[Table]:
    """All tables, kind by kind; `shown` has what makes the tables of kinds that are no retrieval on sets."""
    on_sets = [entry for entry in entries if entry.report.kind == RETRIEVAL]
    tables = [*set_tables(on_sets), *published_comparisons(on_sets), *difference_tables(on_sets)]
    for kind in dict.fromkeys(entry.report.kind for entry in entries if entry.report.kind != RETRIEVAL):
        those = [entry for entry in entries if entry.report.kind == kind]
        tables += shown[kind](those) if shown and kind in shown else [number_table(kind, those)]
    return [*tables, settings_table(entries)]


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
    """Whether entries have different captions or pictures; a report of before pictures had a hash says nothing."""
    name = {"captions": "texts_sha256", "pictures": "pictures_sha256"}[what]
    return len({entry.result["sets"][data].get(name) for entry in entries} - {None}) > 1


def _score_cells(scores: Mapping[str, Any]) -> list[str]:
    bounds = scores.get("intervals", {}).get("r1")
    range_ = NONE if bounds is None else f"{bounds[0]:.2f} to {bounds[1]:.2f}"
    cells = [f"{scores['r1']:.2f}", range_, f"{scores['r5']:.2f}", f"{scores['r10']:.2f}"]
    return [*cells, cell(scores.get("median_rank"), ".1f"), f"{scores['mean_rank']:.2f}"]


def _r1(entry: Entry, data: str, probe: str, way: str) -> float | None:
    return entry.result["sets"].get(data, {}).get("probes", {}).get(probe, {}).get(way, {}).get("r1")


def cell(value: float | None, form: str = ".2f") -> str:
    """A number as text, a dash where there is none."""
    return NONE if value is None else format(value, form)


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


def interval_cell(bounds: list[float]) -> str:
    """An interval of a difference, bold where it is clear of 0."""
    text = f"{bounds[0]:+.2f} to {bounds[1]:+.2f}"
    return f"**{text}**" if bounds[0] > 0 or bounds[1] < 0 else text


def number_table(kind: str, entries: list[Entry]) -> Table:
    """The numbers of another kind of report, a row each, an encoder a column."""
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
