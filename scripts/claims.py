"""What the measurements had to show, and whether they do: computed from the reports, whichever way it comes out.

The rule for "above": the difference of two means over training seeds is larger than the sum of their standard
deviations. "Not below": the difference is larger than minus that sum. With one seed there is no spread and the verdict
says so. Late details also have a paired interval over prompts: 95 % of 2,000 bootstrap samples of prompts.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from reports import Pick, Reports, Spread, drawn, r1, read, spread_of, title_of, values_of

PAIRS = (
    ("debias-l0.1", "long-clip-l0.5", "each recipe with its own weight"),
    ("debias-l0.1", "long-clip-l0.1", "both with λs 0.1"),
    ("debias-l0.5", "long-clip-l0.5", "both with λs 0.5"),
    ("debias-sentences-l0.1", "long-clip-sentences-l0.5", "as shipped: each with its own weight, late sentences held"),
)
PARTS = ("summary", "second_half")  # whose attention per token is compared


@dataclasses.dataclass(frozen=True)
class Claim:
    """One comparison: its text, the two values, the verdict, and a remark."""

    text: str
    ours: Spread | None
    theirs: Spread | None
    verdict: str
    remark: str = ""


def verdict_of(ours: Spread | None, theirs: Spread | None, *, floor: bool = False) -> str:
    """`holds` or `does not hold` by the rule above (`floor`: not below), `not measured` without a value."""
    if ours is None or theirs is None:
        return "not measured"
    spread = (ours.deviation or 0) + (theirs.deviation or 0)
    difference = ours.mean - theirs.mean
    verdict = "holds" if difference > (-spread if floor else spread) else "does not hold"
    one_seed = ours.deviation is None or theirs.deviation is None
    return verdict + (" (one seed: no spread)" if one_seed else "")


def compare(reports: Reports, kind: str, pair: tuple[str, str], pick: Pick) -> tuple[Spread | None, Spread | None]:
    """The values of both recipes of a pair."""
    groups = reports.of_kind(kind)
    ours, theirs = (spread_of(values_of(groups.get(recipe, {}), pick)) for recipe in pair)
    return ours, theirs


def lost(probe: str, way: str) -> Pick:
    """Minus the share of Keep, in percent, that a probe costs: higher is better, like every other value here."""

    def pick(result: dict) -> float | None:
        keep, probed = (r1(name, way)(result) for name in ("keep", probe))
        return None if not keep or probed is None else -100 * (keep - probed) / keep

    return pick


def unevenness(result: dict) -> float | None:
    """Minus |log2| of the attention per token on the summary over that on the second half: 0 is flat."""
    first, late = (read("attention", "per_token_all_layers", "by_part", part)(result) for part in PARTS)
    return None if not first or not late else -abs(math.log2(first / late))


def paired_interval(reports: Reports, pair: tuple[str, str]) -> str:
    """95 % bootstrap interval over prompts of the difference in late-detail scores, seeds pooled."""
    groups = reports.of_kind("fidelity")
    counts = []
    for recipe in pair:
        results = [result for many in groups.get(recipe, {}).values() for result in many]
        if not results or len({result["settings"]["texts_sha256"] for result in results}) > 1:
            return ""
        counts.append(np.sum([drawn("late_per_prompt")(result) for result in results], axis=0))
    if len(counts[0]) != len(counts[1]):
        return ""
    rows = np.random.default_rng(0).integers(0, len(counts[0]), (2000, len(counts[0])))
    shares = [100 * count[rows, 0].sum(1) / count[rows, 1].sum(1) for count in counts]
    low, high = np.percentile(shares[0] - shares[1], [2.5, 97.5])
    return f"95 % over prompts: {low:+.1f} to {high:+.1f} points"


def all_claims(reports: Reports, pair: tuple[str, str]) -> list[Claim]:
    """Every claim of the project's first results for one pair of recipes."""
    claims = []

    def add(text: str, kind: str, pick: Pick, *, floor: bool = False, remark: str = "") -> None:
        ours, theirs = compare(reports, kind, pair, pick)
        claims.append(Claim(text, ours, theirs, verdict_of(ours, theirs, floor=floor), remark))

    for way in ("t2i", "i2t"):
        for probe in ("keep", "move", "remove"):
            add(f"R@1 {way.upper()} above: {probe.title()}", "retrieval", r1(probe, way))
        for probe in ("move", "remove"):
            add(f"loses less of Keep: {probe.title()}, {way.upper()} (% of Keep)", "retrieval", lost(probe, way))
        add(
            f"short captions about arbitrary content, R@1 {way.upper()}: not below",
            "retrieval",
            r1("keep", way, of="arbitrary"),
            floor=True,
        )
    flat = "minus the absolute log2 of summary over second half, per token"
    add("attention flatter (0 is flat)", "attention", unevenness, remark=flat)
    add("late-detail score higher", "fidelity", drawn("late_detail"), remark=paired_interval(reports, pair))
    return claims


def claims_section(reports: Reports) -> list[str]:
    """Markdown lines: the rule, then the tables of claims."""
    return ["## What was to be shown", "", " ".join(__doc__.split("\n\n")[1].split()), "", *claims_tables(reports)]


def claims_tables(reports: Reports) -> list[str]:
    """A table of claims for each pair that was measured, under its own heading."""
    lines = []
    for ours, theirs, why in PAIRS:
        claims = all_claims(reports, (ours, theirs))
        if all(claim.verdict == "not measured" for claim in claims):
            continue
        lines += [f"### {title_of(ours)} against {title_of(theirs)} ({why})", ""]
        lines += [f"| claim | {title_of(ours)} | {title_of(theirs)} | verdict | |", "|---|---|---|---|---|"]
        for claim in claims:
            digits = [("–" if value is None else _digits(value, claim)) for value in (claim.ours, claim.theirs)]
            lines.append(f"| {claim.text} | {digits[0]} | {digits[1]} | **{claim.verdict}** | {claim.remark} |")
        lines.append("")
    return lines


def _digits(value: Spread, claim: Claim) -> str:
    if not claim.text.startswith("attention"):
        return str(value)
    return f"{value.mean:.2f}" + ("" if value.deviation is None else f" ± {value.deviation:.2f}")
