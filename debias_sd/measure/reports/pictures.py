"""Reports of judged pictures and of judges: late details, differences and trust as tables, quarters as plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from debias_sd.measure.reports.page import COLOURS, Entry, Gallery, Shown, Table, cell, draw_png, interval_cell, is_jpeg
from debias_sd.report import FIDELITY, JUDGE
from debias_sd.text import count_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from debias_sd.report import Report

MEAN_ALONE = "0 is not a measurement, only the mean scores are"
_QUARTERS = ("1st quarter", "2nd", "3rd", "4th")


def says_drawn(judge: Mapping[str, Any]) -> bool:
    """Whether a judge, as reports describe it, can say drawn at all: one that was never sure enough has no share."""
    return judge["thresholds"]["drawn"] is not None


def _can_say_drawn(entry: Entry, judge: str) -> bool:
    return says_drawn(entry.report.extra["judges"][judge])


def picture_tables(entries: list[Entry]) -> Iterator[Table]:
    """For every judge: late details and quarters of each encoder, then the paired differences of each report."""
    for judge in dict.fromkeys(judge for entry in entries for judge in entry.result["judges"]):
        having = [entry for entry in entries if judge in entry.result["judges"]]
        notes = [having[0].report.extra["judges"][judge]["meaning"].capitalize() + "."]
        if len({(e.report.settings["texts_sha256"], *e.report.settings["seeds"]) for e in having}) > 1:
            notes.append("The reports were measured on different prompts or seeds: these rows cannot be compared.")
        sources = dict.fromkeys(e.report.extra["judges"][judge]["thresholds"]["source"] for e in having)
        notes.append(f"Thresholds: {'; '.join(sources)}.")
        if never := [entry.label for entry in having if not _can_say_drawn(entry, judge)]:
            of = "" if len(never) == len(having) else f", in the report of {', '.join(never)}"
            notes.append(f"No score is enough for it to say drawn{of}: {MEAN_ALONE}.")
        head = ("", "late details drawn, %", "95 %", "floor", "unsure", "mean score", "95 %", *_QUARTERS, "judged")
        rows = tuple((entry.label, *_cells(entry.result["judges"][judge])) for entry in having)
        yield Table(f"Pictures by {judge}", " ".join(notes), head, rows)
    for report in {id(entry.report): entry.report for entry in entries}.values():
        yield from _comparisons(report.extra)


def _cells(scores: Mapping[str, Any]) -> list[str]:
    floor = scores.get("floor", {}).get("late_detail")
    cells = [cell(scores["late_detail"], ".1f"), _range(scores["late_detail_interval"]), cell(floor, ".1f")]
    cells += [cell(scores["unsure"], ".1f"), cell(scores["late_score"], ".1f"), _range(scores["late_score_interval"])]
    return [*cells, *(cell(value, ".1f") for value in scores["by_quarter"]), f"{scores['late_judged']:,}"]


def _range(bounds: list[float] | None) -> str:
    return cell(None) if bounds is None else f"{bounds[0]:.1f} to {bounds[1]:.1f}"


def _comparisons(extra: Mapping[str, Any]) -> Iterator[Table]:
    rows = [
        (
            pair,
            judge,
            _points(found["late_drawn"], known=says_drawn(extra["judges"][judge])),
            _points(found["late_score"]),
        )
        for judge, pairs in extra["differences_of_pictures"].items()
        for pair, found in pairs.items()
    ]
    if rows:
        note = "Points, first minus second, and 95 % of paired bootstrap draws of prompts; clear of 0 in bold."
        if not all(map(says_drawn, extra["judges"].values())):
            note += " –: the judge can never say drawn."
        yield Table("Differences in late details", note, ("", "judge", "drawn", "mean score"), tuple(rows))
    rows = [
        (
            pair,
            way,
            cell(found["same"], ".1f"),
            cell(found["kappa"]),
            cell(found["auc"], ".3f"),
            str(found["both_judged"]),
        )
        for pair, ways in extra["agreement"].items()
        for way, found in ways.items()
    ]
    if rows:
        note = (
            "Percent called the same, beyond chance (kappa), and how well the first one's score tells what the second"
        )
        head = ("", "pictures of", "same, %", "kappa", "AUC", "sentences")
        yield Table("Judges against each other", f"{note} calls drawn.", head, tuple(rows))


def _points(found: Mapping[str, Any], *, known: bool = True) -> str:
    if found["points"] is None or not known:
        return cell(None)
    bounds = found["interval"]
    return f"{found['points']:+.1f}" + (f", {interval_cell(bounds)}" if bounds else "")


def judge_tables(entries: list[Entry]) -> Iterator[Table]:
    """How far each judge can be trusted."""
    rows = []
    for entry in entries:
        found = entry.result
        rows.append(
            (
                entry.label,
                entry.report.settings["known"],
                cell(found["auc"], ".3f"),
                cell(None) if found["auc_interval"] is None else "{:.3f} to {:.3f}".format(*found["auc_interval"]),
                cell(found["floor"]["auc"], ".3f"),
                cell(100 * found["accuracy"], ".1f"),
                *(_mark(found, mark, right) for mark, right in (("drawn", "true"), ("missing", "false"))),
                f"{found['claims']:,}",
            )
        )
    note = (
        "On the half of the pictures that did not choose the thresholds. Floor: AUC of the sentences in other pictures."
    )
    head = ("", "known", "AUC", "95 %", "floor", "accuracy, %", "drawn from", "missing below", "sentences")
    yield Table("Judges where the content is known", note, head, tuple(rows))


def _mark(found: Mapping[str, Any], mark: str, right: str) -> str:
    threshold, share = found["thresholds"][mark], found[f"{mark}_that_is_{right}"]
    if threshold is None:
        return "never"
    return f"{threshold:.2f}" + (f" ({share:.0f} % {right})" if share is not None else "")


def picture_galleries(entries: list[Entry]) -> list[Gallery]:
    """Some prompts of each report with every encoder's picture, and how many late details the first judge found."""
    galleries = []
    for report in {id(e.report): e.report for e in entries if e.report.kind == FIDELITY}.values():
        rows = []
        for number, example in enumerate(report.extra.get("examples", [])):
            shown = [
                Shown(_words(way, report, number), jpeg) for way, jpeg in example["pictures"].items() if is_jpeg(jpeg)
            ]
            rows.append((example["prompt"], tuple(shown)))
        if rows:
            galleries.append(Gallery(f"Pictures of {report.settings['prompts']}", tuple(rows)))
    return galleries


def _words(way: str, report: Report, number: int) -> str:
    judge, scores = next(iter(report.encoders[way]["judges"].items()))
    if not says_drawn(report.extra["judges"][judge]):
        return f"{way}: {judge} can never say drawn"
    drawn, judged = scores["late_per_prompt"][number]
    return f"{way}: {drawn} of {count_of(judged, 'late detail')} by {judge}"


TABLES = {FIDELITY: picture_tables, JUDGE: judge_tables}


def quarter_plots(entries: list[Entry]) -> dict[str, bytes]:
    """PNG files by name: for every judge the share drawn by quarter of the prompt, one line per encoder.

    A judge that can never say drawn has no share: its encoders are named without a line.
    """
    judged = [entry for entry in entries if entry.report.kind == FIDELITY]
    plots = {}
    for judge in dict.fromkeys(judge for entry in judged for judge in entry.result["judges"]):
        lines: dict[str, list[float | None]] = {}
        for entry in (entry for entry in judged if judge in entry.result["judges"]):
            if _can_say_drawn(entry, judge):
                lines[entry.label] = entry.result["judges"][judge]["by_quarter"]
            else:
                lines[f"{entry.label}: never drawn"] = []
        if any(value is not None for values in lines.values() for value in values):
            name = "".join(character if character.isalnum() or character in "-_." else "-" for character in judge)
            plots[f"pictures-{name}.png"] = draw_png(partial(_curves, lines), f"sentences drawn by {judge}, %")
    return plots


def _curves(lines: Mapping[str, list[float | None]], axes: Axes) -> None:
    for number, (label, values) in enumerate(lines.items()):
        known = [(place, value) for place, value in enumerate(values) if value is not None]
        if known or not values:
            axes.plot(
                *(zip(*known, strict=True) if known else ((), ())),
                color=COLOURS[number % len(COLOURS)],
                marker="o",
                label=label,
            )
    axes.set_xticks(range(4), [f"{name} of the details" if name == _QUARTERS[0] else name for name in _QUARTERS])
