"""Write docs/results.md and its plots from JSON reports, and from nothing else.

    python scripts/results.py [--reports results] [--docs docs] [--readme README.md]

Reports come from `debias-sd evaluate` (all of them: `scripts/experiments.py`). An encoder's name in a report is
`<recipe>-s<seed>`, or `-f<seed>` where only the fine-tuning has another seed and the base is that of the first. Values
are means ± sample standard deviations over both kinds of seeds. Reports in a folder `another-seed` inside `--reports`
are of a second run from nothing and get a section of their own, those in `training-ways` (of
`scripts/experiments.py --other-ways`) another and the table between the marks of training.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from claims import claims_section, claims_tables, lost
from plots import plot_attention, plot_places, plot_probes
from reports import Pick, Reports, drawn, found, r1, read, replace_between, spread_of, table_of, title_of, values_of
from ways import sentences_section, ways_section, write_training_table

from debias_sd.report import write_atomically

PROBES = ("keep", "move", "remove", "first2", "swap2", "first_only")
SHORT = ("summary", "arbitrary", "details_1", "details_2", "details_3", "details_4")
PADS = {"0": "keep", "20": "pads20", "40": "pads40", "80": "pads80", "120": "pads120"}
ANOTHER_SEED = "another-seed"  # the folder of a second run's reports, inside that of the first
TRAINING_WAYS = "training-ways"  # that of encoders trained in other ways
WAYS = {"t2i": "text to image", "i2t": "image to text"}
# The README's table.
BEGIN, END = "<!-- results: written by scripts/results.py -->", "<!-- end of results -->"
HEADLINE_ROWS = ("base", "base-chunked", "base-stretched", "long-clip-l0.5", "debias-l0.1")
HEADLINE_ROWS += ("long-clip-sentences-l0.5", "debias-sentences-l0.1")
HEADLINE = {
    "Keep": ("retrieval", r1("keep", "t2i")),
    "Move": ("retrieval", r1("move", "t2i")),
    "Remove": ("retrieval", r1("remove", "t2i")),
    "summary drawn": ("fidelity", drawn("summary_score")),
    "late details drawn": ("fidelity", drawn("late_detail")),
}


def table(groups: dict, columns: dict[str, Pick], *, seeds: bool = True) -> list[str]:
    """A Markdown table: a row for each recipe, a column for each picked value."""
    rows = []
    for recipe, by_seed in groups.items():
        cells = [spread_of(values_of(by_seed, pick)) for pick in columns.values()]
        last = [str(len(by_seed))] if seeds else []
        rows.append([title_of(recipe), *("–" if cell is None else str(cell) for cell in cells), *last])
    return [*table_of(["", *columns, *(["seeds"] if seeds else [])], rows), ""]


def retrieval_section(reports: Reports, docs: Path) -> list[str]:
    groups = reports.of_kind("retrieval")
    if not groups:
        return []
    lines = [
        *("## Retrieval", ""),
        "R@1 in percent. Full captions: scenes in families of four near-twins that differ in one",
        "detail, named in the caption's second half. Keep: the full caption. Move: sentences 1 and 4 swapped. Remove:",
        "sentence 1 dropped. First2, Swap2, First_only: the first two sentences, swapped, the first alone.",
        "",
    ]
    if plot_probes(reports, docs / "results-probes.png"):
        lines += ["![R@1 under Keep, Move and Remove](results-probes.png)", ""]
    for way, words in WAYS.items():
        lines += [f"### Full captions, {words}", "", *table(groups, {name: r1(name, way) for name in PROBES})]
    losses = {f"{probe}, {way.upper()}": lost(probe, way) for way in WAYS for probe in ("move", "remove")}
    lines += ["### Percent of Keep that is lost (minus: lost)", "", *table(groups, losses)]
    twins = {f"twins {name}": found(name, "twin_percent") for name in PROBES[:3]}
    twins |= {f"mean rank {name}": found(name, "t2i", "mean_rank") for name in ("keep", "remove")}
    lines += ["### Own picture above its three twins, percent (chance: 25), and mean rank", "", *table(groups, twins)]
    lines += [
        *("### Short captions", ""),
        "`summary` and `arbitrary`: two things in one sentence of a template that no encoder",
        "was trained on, about the summary's content and about two random details; `details_k`: k sentences about",
        "random details, worded as in long captions (DeBias-CLIP's short captions look like these).",
        "",
    ]
    for way, words in WAYS.items():
        lines += [f"R@1, {words}:", "", *table(groups, {kind: r1("keep", way, of=kind) for kind in SHORT})]
    lines += [
        *("### Pads in front of short captions", ""),
        "R@1, text to image; – where they do not fit into the window. Pads",
        "are in DeBias-CLIP's training distribution and unseen by the others.",
        "",
    ]
    for kind in ("summary", "arbitrary"):
        picks = {pads: r1(probe, "t2i", of=kind) for pads, probe in PADS.items()}
        lines += [f"About {kind} content:", "", *table(groups, picks)]
    return lines


def attention_section(reports: Reports, docs: Path) -> list[str]:
    groups = reports.of_kind("attention")
    if not groups:
        return []
    lines = ["## Attention from the end token", ""]
    if plot_attention(reports, docs / "results-attention.png"):
        lines += ["![Mean attention from the end token by position](results-attention.png)", ""]
    parts = {"summary": "summary", "details 1st half": "first_half", "details 2nd half": "second_half"}
    per_token = {n: _times(read("attention", "per_token_all_layers", "by_part", key), 100) for n, key in parts.items()}
    changes = {name: _times(read("thing", "change", "by_part", key), 1000) for name, key in parts.items()}
    return [
        *lines,
        *("Attention per token, 100 is uniform over the caption's words (mean of heads and layers):", ""),
        *table(groups, per_token),
        "Sensitivity: 1,000 times the cosine change of the pooled vector when the thing that one sentence names",
        *("gets another colour and shape:", ""),
        *table(groups, changes),
    ]


def _times(pick: Pick, factor: float) -> Pick:
    return lambda result: None if (value := pick(result)) is None else factor * value


def fidelity_section(reports: Reports, docs: Path) -> list[str]:
    groups = reports.of_kind("fidelity")
    if not groups:
        return []
    lines = [
        *("## Pictures", ""),
        "The same UNet, trained on the base encoder and never adapted; only the text encoder is",
        "swapped. Percent of named things that were drawn (cell, colour, shape and size right), same noise for all",
        "encoders. Late-detail score: things named in the second half of the detail sentences and not in the summary.",
        "Past 77: the same for sentences that begin behind token 76. Floor: pictures judged by other scenes' prompts.",
        "",
    ]
    if plot_places(reports, docs / "results-places.png"):
        lines += ["![Things drawn by the place of their sentence](results-places.png)", ""]
    shares = {"late-detail score": drawn("late_detail"), "floor": drawn("floor", "late_detail")}
    shares |= {"past 77": drawn("past_77"), "summary": drawn("summary_score")}
    shares |= {"1st half": drawn("first_half"), "2nd half": drawn("second_half")}
    quarters: dict[str, Pick] = {f"quarter {q + 1}": drawn("by_quarter", q) for q in range(4)}
    quarters |= {"unnamed cells filled": drawn("unnamed", "filled_percent")}
    parts = {"colour right": "colour", "shape right": "shape", "anything": "anything"}
    return [
        *lines,
        *table(groups, shares),
        *("By quarter of the prompt's details, and cells that no sentence names but where something was drawn:", ""),
        *table(groups, quarters),
        *(
            "Late details in part: what stands in the named cell has the right colour, the right shape, is anything:",
            "",
        ),
        *table(groups, {name: drawn("late_aspects", key) for name, key in parts.items()}),
        *checker_section(reports),
    ]


def checker_section(reports: Reports) -> list[str]:
    """The checker's own error rates, from the first report that measured them: the ceiling of the scores above."""
    checked = [source for source in reports.sources if "checker_errors" in source.report.extra]
    if not checked:
        return []
    lines = ["### The checker's own errors: the ceiling", "", f"From {checked[0].path.name}, on rendered scenes:", ""]
    rows = []
    for name, rates in checked[0].report.extra["checker_errors"].items():
        cells = [rates[key] for key in ("missed_percent", "false_percent", "filled_percent")]
        numbers = ("–" if value is None else f"{value:.2f}" for value in cells)
        rows.append((name.replace("_", " "), *numbers, str(rates["things"])))
    heads = ("pictures", "things missed, %", "near misses let pass, %", "empty cells filled, %", "things")
    return [*lines, *table_of(heads, rows), ""]


def again_section(again: Reports | None) -> list[str]:
    """What was trained and measured again from nothing with another seed: bases, encoders, UNet and pictures."""
    if again is None:
        return []
    lines = ["## Again from nothing with another seed", "", "Another base, other fine-tunings and another UNet on that"]
    lines += ["base, measured on the same held-out scenes and prompts. What holds in both runs is a property of the"]
    lines += ["recipes here; what holds in one is a property of its base.", "", *claims_tables(again)]
    picks = {f"{probe} T2I": r1(probe, "t2i") for probe in PROBES[:3]}
    lines += table(again.of_kind("retrieval"), picks)
    picks = {"late-detail score": drawn("late_detail"), "past 77": drawn("past_77"), "summary": drawn("summary_score")}
    return lines + table(again.of_kind("fidelity"), picks)


def sources_section(reports: Reports) -> list[str]:
    """Every report that a number can come from, with what is needed to make it again."""
    rows = []
    for source in reports.sources:
        report = source.report
        named = ", ".join(f"{name} ({result['sha256'][:10]})" for name, result in report.encoders.items())
        seed, command = str(report.settings["seed"]), f"`{report.command}`"
        rows.append((source.path.name, named, seed, command, f"{report.seconds:.0f}"))
    heads = ("report", "encoder (weights)", "evaluation seed", "command", "s")
    lines = ["## Where the numbers come from", "", *table_of(heads, rows)]
    versions = sorted({", ".join(f"{k} {v}" for k, v in source.report.versions.items()) for source in reports.sources})
    return [*lines, "", "Versions: " + "; ".join(versions) + ".", ""]


def write_results(reports: Reports, docs: Path, *, again: Reports | None = None, ways: Reports | None = None) -> Path:
    """Write the plots and results.md into `docs`; `again` are reports with another seed, `ways` of other ways."""
    docs.mkdir(parents=True, exist_ok=True)
    lines = [
        *("# Results", ""),
        "Written by `python scripts/results.py` from JSON reports; do not edit. Means ± sample standard",
        "deviations over training seeds: CLIP rows over bases trained from nothing, the others over fine-tunings of "
        "the",
        "first base (the UNet was trained on that one). `make results` trains and measures everything again.",
        "",
        "Both recipes train with a term that keeps the first 77 states close to the base's, so that the untouched UNet",
        "can read them; `free` is without it, `sentences` has a second one (section Late sentences held).",
        "What does not hold, and guesses why: [log.md](log.md).",
        "",
    ]
    lines += claims_section(reports)
    for section in (retrieval_section, attention_section, fidelity_section):
        lines += section(reports, docs)
    lines += again_section(again)
    lines += sentences_section(reports, again)
    lines += ways_section(reports, ways)
    lines += sources_section(reports)
    for title, more in (("With another seed", again), ("Other ways of training", ways)):
        if more is not None:
            lines += [f"{title}:", "", *sources_section(more)[2:]]
    return write_atomically(docs / "results.md", ("\n".join(lines).rstrip() + "\n").encode())


def headline_table(reports: Reports) -> list[str]:
    """Retrieval under the probes and what was drawn, a row for each way to read a long prompt."""
    rows = []
    for recipe in HEADLINE_ROWS:
        found = (spread_of(values_of(reports.of_kind(kind).get(recipe, {}), pick)) for kind, pick in HEADLINE.values())
        rows.append((title_of(recipe), *("–" if value is None else str(value) for value in found)))
    return table_of(("", *HEADLINE), rows)


def write_headline(reports: Reports, readme: Path) -> None:
    """Replace what stands between the marks of `readme`; ValueError when it has none."""
    replace_between(readme, (BEGIN, END), headline_table(reports))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=Path, default=Path("results"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    parser.add_argument("--readme", type=Path, help="also write the table of this README, between its marks")
    options = parser.parse_args()
    try:
        reports = Reports.read(options.reports)
        inside = {name: options.reports / name for name in (ANOTHER_SEED, TRAINING_WAYS)}
        more = {name: Reports.read(folder) if folder.is_dir() else None for name, folder in inside.items()}
        ways = more[TRAINING_WAYS]
        print(write_results(reports, options.docs, again=more[ANOTHER_SEED], ways=ways))
        if ways is not None:
            write_training_table(reports, ways, options.docs / "training.md")
        if options.readme is not None:
            write_headline(reports, options.readme)
    except ValueError as error:
        print(f"results: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
