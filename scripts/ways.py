"""The sections of docs/results.md on other ways of training and on late sentences, and the table in docs/training.md.

Late sentences are held to what the base makes of each alone.
"""

from __future__ import annotations

import statistics
import textwrap
from pathlib import Path

from claims import paired_interval
from reports import Pick, Reports, Spread, at, drawn, r1, replace_between, spread_of, table_of, title_of, values_of

RULE = (
    "The rule for a difference: it is larger than the sum of the two standard deviations over training seeds, else the "
    "values are within the spread."
)
MARKS = ("<!-- ways: written by scripts/results.py -->", "<!-- end of ways -->")
RECIPES = {"debias": "debias-l0.1", "long-clip": "long-clip-l0.5"}
COLUMNS: dict[str, tuple[str, Pick]] = {
    **{
        f"{probe.title()}, {way.upper()}": ("retrieval", r1(probe, way))
        for way in ("t2i", "i2t")
        for probe in ("keep", "move", "remove")
    },
    **{
        f"short ({kind}), {way.upper()}": ("retrieval", r1("keep", way, of=kind))
        for kind in ("summary", "details_4")
        for way in ("t2i", "i2t")
    },
    "late details drawn": ("fidelity", drawn("late_detail")),
    "drawn past 77": ("fidelity", drawn("past_77")),
    "summary drawn": ("fidelity", drawn("summary_score")),
}
COMPARED = (("packed", "grouped"), ("frozen", "grouped"), ("frozen", "packed"))
STEPS = ("grouped", "packed", "packed, frozen")
HELD = ("long-clip", "debias")  # recipes that were trained with the term on late sentences, too
CHUNKED = "base-chunked"
INTRODUCTION = (
    "Not in the papers: both recipes with `late_sentences_weight` 1 (training.md) and everything else as above. The "
    "states of each sentence that begins behind the base's window are held to those that the base gives it alone, "
    "which is what chunking feeds the UNet. In brackets: training seeds."
)


def name_of(recipe: str, way: str) -> str:
    """The name in reports of `recipe` trained in `way`; grouped are the encoders of the other sections."""
    return RECIPES[recipe] if way == "grouped" else f"{recipe}-{way}{RECIPES[recipe].removeprefix(recipe)}"


def value_of(reports: Reports, name: str, column: str) -> Spread | None:
    kind, pick = COLUMNS[column]
    return spread_of(values_of(reports.of_kind(kind).get(name, {}), pick))


def verdict_of(ours: Spread | None, theirs: Spread | None) -> str:
    """By the rule above."""
    if ours is None or theirs is None:
        return "not measured"
    difference = ours.mean - theirs.mean
    if ours.deviation is None or theirs.deviation is None:
        return f"{difference:+.1f}, one seed"
    if abs(difference) <= ours.deviation + theirs.deviation:
        return "within the spread"
    return "**higher**" if difference > 0 else "**lower**"


def quality_table(reports: Reports, recipe: str) -> list[str]:
    """A row for each measure: the three ways and how they compare."""
    names = {way: name_of(recipe, way) for way in ("grouped", "packed", "frozen")}
    seeds = {way: len(reports.of_kind("retrieval").get(name, {})) for way, name in names.items()}
    heads = [f"{way} ({count})" for way, count in seeds.items()] + [f"{a} against {b}" for a, b in COMPARED]
    rows = []
    for column in COLUMNS:
        values = {way: value_of(reports, name, column) for way, name in names.items()}
        cells = ["–" if value is None else str(value) for value in values.values()]
        cells += [verdict_of(values[ours], values[theirs]) for ours, theirs in COMPARED]
        rows.append((column, *cells))
    found = {f"{a} against {b}": paired_interval(reports, (names[a], names[b])) for a, b in COMPARED}
    said = "; ".join(f"{text} {value}" for text, value in found.items() if value)
    return [*table_of(["", *heads], rows), "", *([f"Late details, paired: {said}.", ""] if said else [])]


def again_lines(reports: Reports) -> list[str]:
    """Whether the grouped way still trains the reported encoder with today's code, and measures the same."""
    lines = []
    for recipe in RECIPES:
        found = []
        for kind, part in (("retrieval", "sets"), ("fidelity", "judges")):
            groups = reports.of_kind(kind)
            again = [r for many in groups.get(name_of(recipe, "again"), {}).values() for r in many]
            first = [r for seed, many in groups.get(RECIPES[recipe], {}).items() for r in many if seed[0] == "s"]
            if again and first:
                weights = (
                    "the same weights, bit for bit" if again[0]["sha256"] == first[0]["sha256"] else "other weights"
                )
                same = "the same" if again[0][part] == first[0][part] else "another"
                found += [weights, f"{same} {kind} result"]
        if found:
            said = ", ".join(dict.fromkeys(found))
            lines += [f"Grouped again, the first seed of {title_of(RECIPES[recipe])} with today's code: {said}.", ""]
    return lines


def step_lines(reports: Reports) -> list[str]:
    """Processor time of a step in each way, from one process, and of what surrounds it."""
    lines = []
    for source in reports.sources:
        report = source.report
        if report.kind != "step":
            continue
        grouped, rounds = report.encoders["grouped"]["processor_seconds"], report.settings["rounds"]
        lines += [f"{source.path.name}, {rounds} steps of {report.settings['batch']} pairs each, in turns:", ""]
        lines += ["| | processor s a step, median | by grouped (lowest and highest round) | s to make a batch |"]
        lines += ["|---|---|---|---|"]
        for way, result in report.encoders.items():
            own = result["processor_seconds"]
            ratios = sorted(mine / theirs for mine, theirs in zip(own, grouped, strict=True))
            cells = (
                f"{statistics.median(own):.2f} | {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )
            lines.append(f"| {way} | {cells} | {statistics.median(result['batch_seconds']):.3f} |")
        once = report.extra["features_once"]
        each = once["processor_seconds"] / once["pictures"]
        share = (
            100 * each * report.settings["batch"] / statistics.median(report.encoders["packed"]["processor_seconds"])
        )
        lines += [
            "",
            f"Drawing a picture and computing its features: {1000 * each:.2f} ms, {share:.1f} % of a packed step",
        ]
        lines += ["for all pictures of a batch. A frozen tower can save no more than that and its backward pass.", ""]
    return lines


def training_lines(reports: Reports) -> list[str]:
    """What whole trainings took, start and features included."""
    groups = reports.of_kind("training")
    if not groups:
        return []
    lines = ["Whole trainings, with start-up and features; the machine's load differed from one to the next:", ""]
    lines += ["| | processor seconds | peak memory, MB | seeds |", "|---|---|---|---|"]
    for name, by_seed in groups.items():
        picks = (at("processor_seconds"), at("peak_mb"))
        cells = [str(spread_of(values_of(by_seed, pick))) for pick in picks]
        lines.append(f"| {title_of(name.replace('-again', '-grouped'))} | {' | '.join(cells)} | {len(by_seed)} |")
    return [*lines, ""]


def ways_section(reports: Reports, ways: Reports | None) -> list[str]:
    """Markdown lines of the section; none where nothing was measured."""
    if ways is None:
        return []
    both = Reports(reports.sources + ways.sources)
    lines = ["## Other ways of training", "", "The same recipes from the same base with the same settings, seeds and"]
    lines += [
        "held-out sets (`scripts/experiments.py --other-ways`). Grouped: the encoders above without the second term. "
        "Packed:"
    ]
    lines += ["`text_pass: packed`, the trainer's default. Frozen: packed with `freeze_image_tower: true`."]
    lines += ["In brackets: training seeds.", ""]
    lines += [f"{RULE} Without a spread (one seed on a side) there is no verdict but the difference.", ""]
    for recipe, variant in RECIPES.items():
        if name_of(recipe, "packed") in ways.of_kind("retrieval"):
            lines += [f"### {title_of(variant)}", "", *quality_table(both, recipe)]
    return [*lines, *again_lines(both), "### Time and memory", "", *step_lines(ways), *training_lines(ways)]


def training_table(reports: Reports, ways: Reports) -> list[str]:
    """The table of docs/training.md: a row for each way, of the recipes that were measured."""
    both = Reports(reports.sources + ways.sources)
    columns = ("Keep, T2I", "Remove, T2I", "Keep, I2T", "late details drawn")
    lines = [f"| | {' | '.join(columns)} | seeds | processor time of a step | peak memory |", "|---" * 8 + "|"]
    for recipe in RECIPES:
        steps = {
            source.report.settings["recipe"]: source.report for source in ways.sources if source.report.kind == "step"
        }
        for way, step in zip(("grouped", "packed", "frozen"), STEPS, strict=True):
            name = name_of(recipe, way)
            if name not in both.of_kind("retrieval") or name_of(recipe, "packed") not in both.of_kind("retrieval"):
                continue
            cells = [str(value_of(both, name, column) or "–") for column in columns]
            cells += [str(len(both.of_kind("retrieval")[name])), _ratio(steps.get(recipe), step)]
            cells.append(_peak(ways, name_of(recipe, "again") if way == "grouped" else name))
            lines.append(f"| {title_of(RECIPES[recipe])}, {step} | {' | '.join(cells)} |")
    return lines


def _ratio(report: object, step: str) -> str:
    if report is None:
        return "–"
    medians = {way: statistics.median(result["processor_seconds"]) for way, result in report.encoders.items()}
    return f"{medians[step] / medians['grouped']:.2f}"


def _peak(ways: Reports, name: str) -> str:
    found = values_of(ways.of_kind("training").get(name, {}), at("peak_mb"))
    return f"{statistics.mean(found):,.0f} MB" if found else "–"


def write_training_table(reports: Reports, ways: Reports, document: Path) -> None:
    """Replace what stands between the marks of docs/training.md; a document without marks stays as it is."""
    if document.is_file() and MARKS[0] in document.read_text(encoding="utf-8"):
        replace_between(document, MARKS, training_table(reports, ways))


def plain(recipe: str) -> str:
    """The name in reports of `recipe` as the other sections have it."""
    return name_of(recipe, "grouped")


def held(recipe: str) -> str:
    """That of `recipe` with the term."""
    return name_of(recipe, "sentences")


def held_table(reports: Reports) -> list[str]:
    """A row for each measure: both recipes without and with the term, and how these compare."""
    measured = [recipe for recipe in HELD if held(recipe) in reports.of_kind("retrieval")]
    heads, cells = [], {column: [] for column in COLUMNS}
    for recipe in measured:
        seeds = [len(reports.of_kind("retrieval").get(name, {})) for name in (plain(recipe), held(recipe))]
        heads += [f"{title_of(plain(recipe))} ({seeds[0]})", f"with the term ({seeds[1]})", "the term"]
        for column, row in cells.items():
            without, with_term = (value_of(reports, name, column) for name in (plain(recipe), held(recipe)))
            row += [str(without or "–"), str(with_term or "–"), verdict_of(with_term, without)]
    return [*table_of(["", *heads], ((column, *row) for column, row in cells.items())), ""]


def interval_lines(reports: Reports) -> list[str]:
    """Late details, paired over prompts: the term against none, against chunking, and the recipes that both have it."""
    pairs = [(held(recipe), other) for recipe in HELD for other in (plain(recipe), CHUNKED)]
    pairs.append((held(HELD[1]), held(HELD[0])))
    found = [(pair, paired_interval(reports, pair)) for pair in pairs]
    lines = [f"- {title_of(ours)} against {title_of(theirs)}: {said}" for (ours, theirs), said in found if said]
    return ["Late details drawn, paired:", "", *lines, ""] if lines else []


def sentences_section(reports: Reports, again: Reports | None) -> list[str]:
    """Markdown lines of the section, of both runs; none where nothing was measured."""
    runs = {"The first run": reports} | ({"Again with another seed": again} if again is not None else {})
    runs = {title: run for title, run in runs.items() if any(held(r) in run.of_kind("retrieval") for r in HELD)}
    if not runs:
        return []
    lines = ["## Late sentences held", "", *textwrap.wrap(INTRODUCTION, 120), ""]
    lines += [f"{RULE} Late details also have paired intervals over prompts, as above.", ""]
    for title, run in runs.items():
        lines += [f"### {title}", "", *held_table(run), *interval_lines(run)]
    return lines
