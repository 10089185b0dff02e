"""The section of docs/results.md on late sentences that are held to what the base makes of each alone.

The rule for a difference: it is larger than the sum of the two standard deviations over training seeds, else the values
are within the spread. Late details also have paired intervals over prompts, as above.
"""

from __future__ import annotations

import textwrap

from claims import paired_interval
from reports import Reports, title_of
from ways import COLUMNS, name_of, value_of, verdict_of

RECIPES = ("long-clip", "debias")
CHUNKED = "base-chunked"
INTRODUCTION = (
    "Not in the papers: both recipes with `late_sentences_weight` 1 (training.md) and everything else as above. The "
    "states of each sentence that begins behind the base's window are held to those that the base gives it alone, "
    "which is what chunking feeds the UNet. In brackets: training seeds."
)


def plain(recipe: str) -> str:
    """The name in reports of `recipe` as the other sections have it."""
    return name_of(recipe, "grouped")


def held(recipe: str) -> str:
    """That of `recipe` with the term."""
    return name_of(recipe, "sentences")


def held_table(reports: Reports) -> list[str]:
    """A row for each measure: both recipes without and with the term, and how these compare."""
    measured = [recipe for recipe in RECIPES if held(recipe) in reports.of_kind("retrieval")]
    heads, cells = [], {column: [] for column in COLUMNS}
    for recipe in measured:
        seeds = [len(reports.of_kind("retrieval").get(name, {})) for name in (plain(recipe), held(recipe))]
        heads += [f"{title_of(plain(recipe))} ({seeds[0]})", f"with the term ({seeds[1]})", "the term"]
        for column, row in cells.items():
            without, with_term = (value_of(reports, name, column) for name in (plain(recipe), held(recipe)))
            row += [str(without or "–"), str(with_term or "–"), verdict_of(with_term, without)]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    return [*lines, *(f"| {column} | {' | '.join(row)} |" for column, row in cells.items()), ""]


def interval_lines(reports: Reports) -> list[str]:
    """Late details, paired over prompts: the term against none, against chunking, and the recipes that both have it."""
    pairs = [(held(recipe), other) for recipe in RECIPES for other in (plain(recipe), CHUNKED)]
    pairs.append((held(RECIPES[1]), held(RECIPES[0])))
    found = [(pair, paired_interval(reports, pair)) for pair in pairs]
    lines = [f"- {title_of(ours)} against {title_of(theirs)}: {said}" for (ours, theirs), said in found if said]
    return ["Late details drawn, paired:", "", *lines, ""] if lines else []


def sentences_section(reports: Reports, again: Reports | None) -> list[str]:
    """Markdown lines of the section, of both runs; none where nothing was measured."""
    runs = {"The first run": reports} | ({"Again with another seed": again} if again is not None else {})
    runs = {title: run for title, run in runs.items() if any(held(r) in run.of_kind("retrieval") for r in RECIPES)}
    if not runs:
        return []
    lines = ["## Late sentences held", "", *textwrap.wrap(INTRODUCTION, 120), ""]
    lines += [" ".join(__doc__.split("\n\n")[1].split()), ""]
    for title, run in runs.items():
        lines += [f"### {title}", "", *held_table(run), *interval_lines(run)]
    return lines
