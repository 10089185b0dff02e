"""The section of docs/results.md on late sentences: written from reports, whichever way they come out."""

from pathlib import Path

import pytest

from debias_sd.report import Report
from tests.test_training_ways import retrieval, run_results

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = {"seed": 0, "texts_sha256": "same"}


def fidelity(late):
    """`late` of 10 things drawn, for each of 20 prompts."""
    shares = {name: 10.0 * late for name in ("late_detail", "past_77", "summary_score", "first_half", "second_half")}
    shares |= {
        "late_aspects": {part: 10.0 * late for part in ("colour", "shape", "anything")},
        "by_quarter": [10.0 * late] * 4,
        "by_sentence": [10.0 * late] * 3,
        "unnamed": {"filled_percent": 1.0},
        "floor": {"late_detail": 1.0},
        "late_per_prompt": [[late, 10]] * 20,
    }
    return {"sha256": f"{late}", "judges": {"checker": shares}}


def write(folder, name, keep, late):
    Report("retrieval", {"seed": 0}, {name: retrieval(keep)}).write(folder / f"retrieval-{name}.json")
    Report("fidelity", PROMPTS, {name: fidelity(late)}).write(folder / f"fidelity-{name}.json")


@pytest.fixture
def reports(tmp_path):
    """DeBias: the term draws 9 instead of 8 of ten and costs 20 points of Keep; Long-CLIP without it alone."""
    folder = tmp_path / "results"
    for number in range(3):
        seed = "s0" if number == 0 else f"f{number}"
        write(folder, f"debias-l0.1-{seed}", 60.0 + number, 8)
        write(folder, f"debias-sentences-l0.1-{seed}", 40.0 + number, 9)
        write(folder, f"long-clip-l0.5-{seed}", 50.0, 8)
    Report("fidelity", PROMPTS, {"base-chunked-s0": fidelity(10)}).write(folder / "fidelity-base-s0.json")
    return folder


def section(reports, docs):
    assert run_results("--reports", reports, "--docs", docs) == 0
    return (docs / "results.md").read_text()


def test_the_term_is_compared_with_none_and_with_chunking(reports, tmp_path):
    text = section(reports, tmp_path / "docs").split("## Late sentences held")[1].split("\n## ")[0]
    assert "### The first run" in text
    assert "another seed" not in text
    assert "| | DeBias-CLIP, λs 0.1 (3) | with the term (3) | the term |" in text
    assert "| Keep, T2I | 61.0 ± 1.0 | 41.0 ± 1.0 | **lower** |" in text
    assert "| late details drawn | 80.0 ± 0.0 | 90.0 ± 0.0 | **higher** |" in text
    with_term = "- DeBias-CLIP, sentences, λs 0.1 against"
    assert f"{with_term} DeBias-CLIP, λs 0.1: 95 % over prompts: +10.0 to +10.0 points" in text
    assert f"{with_term} CLIP, chunked: 95 % over prompts: -10.0 to -10.0 points" in text
    assert "Long-CLIP" not in text


def test_both_recipes_and_both_runs_stand_side_by_side(reports, tmp_path):
    write(reports, "long-clip-sentences-l0.5-s0", 50.0, 7)
    for name in ("debias-l0.1-s10", "debias-sentences-l0.1-s10"):
        write(reports / "another-seed", name, 60.0, 8)
    text = section(reports, tmp_path / "docs").split("## Late sentences held")[1]
    first, again = text.split("### Again with another seed")
    assert "| | Long-CLIP, λs 0.5 (3) | with the term (1) | the term | DeBias-CLIP, λs 0.1 (3) |" in first
    assert "| late details drawn | 80.0 ± 0.0 | 70.0 | -10.0, one seed | 80.0 ± 0.0 |" in first
    assert "λs 0.1 against Long-CLIP, sentences, λs 0.5: 95 % over prompts: +20.0 to +20.0 points" in first
    assert "| late details drawn | 80.0 | 80.0 | +0.0, one seed |" in again


def test_there_is_no_section_where_nothing_was_measured(reports, tmp_path):
    for path in reports.glob("*-sentences-*"):
        path.unlink()
    assert "Late sentences held" not in section(reports, tmp_path / "docs").replace("(section Late", "")


def test_what_the_readme_says_of_both_runs_is_what_was_measured(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from claims import paired_interval
    from reports import Reports, drawn
    from ways import value_of

    first, again = (Reports.read(ROOT / "results" / folder) for folder in (".", "another-seed"))
    plain, held = ("debias-l0.1", "long-clip-l0.5"), ("debias-sentences-l0.1", "long-clip-sentences-l0.5")
    probes = ("Keep, T2I", "Move, T2I", "Remove, T2I")

    def means(reports, name, *columns):
        return [f"{value_of(reports, name, column).mean:.1f}" for column in columns]

    def late(reports, name):
        return means(reports, name, "late details drawn")[0]

    found = [[", ".join(means(again, name, *probes)) for name in pair] for pair in (plain, held)]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"(again: {found[0][0]} against {found[0][1]}; as shipped {found[1][0]} against {found[1][1]})" in text
    rises = " and ".join(
        f"{late(again, new)} instead of {late(again, old)}" for new, old in zip(held, plain, strict=True)
    )
    assert f"(again: {rises}): as much as chunking ({late(again, 'base-chunked')})" in text
    intervals = []
    for reports in (first, again):
        numbers = (
            paired_interval(reports, held).removeprefix("95 % over prompts: ").removesuffix(" points").split(" to ")
        )
        intervals.append(" to ".join(number.removeprefix("+") for number in numbers))
    assert f"(95 % over prompts: {intervals[0]} points, again {intervals[1]})" in text
    assert f"(again: Long-CLIP's, {late(again, plain[1])} against {late(again, plain[0])})" in text
    (by_seed,) = [found for name, found in first.of_kind("fidelity").items() if name == held[1]]
    scores = sorted((drawn("late_detail")(result), seed) for seed, results in by_seed.items() for result in results)
    assert f"({scores[0][0]:.1f} to {scores[-1][0]:.1f}; the one that ships, seed 0, is the lowest)" in text
    assert scores[0][1] == "s0"
