"""benchmarks/retrieval.py measures what it says and refuses to compare unequal work."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("retrieval", "encode"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import retrieval

    return retrieval


SMALL = ["--width", "64", "--layers", "1", "--count", "20", "--images", "50", "--rounds", "2"]


def test_the_report_holds_every_time_and_its_ratio(benchmark, tmp_path, capsys):
    out = tmp_path / "r.json"
    assert benchmark.main([*SMALL, "--texts", str(tmp_path / "none"), "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["texts"]["source"] == "random words"
    assert report["texts"]["largest_difference"] < 1e-5
    for name, other in (("texts", "padded"), ("ranking", "argsort")):
        found = report["comparisons"][name]
        assert {way: len(times) for way, times in found["seconds"].items()} == {"ours": 2, other: 2}
        medians = {way: sum(times) / 2 for way, times in found["seconds"].items()}
        assert found["times_quicker"] == pytest.approx(medians[other] / medians["ours"])
        assert found["goal_met"] is (found["times_quicker"] >= found["goal"])
    assert capsys.readouterr().out.count("times quicker, goal") == 2


def test_unequal_work_is_not_compared_and_counts_that_make_no_sense_are_one_sentence(
    benchmark, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(benchmark, "padded", lambda towers, texts: np.zeros((len(texts), 64), np.float32))
    with pytest.raises(RuntimeError, match="ours and padded features are .* apart; their times cannot be compared"):
        benchmark.main([*SMALL, "--texts", str(tmp_path / "none")])
    assert benchmark.main(["--count", "0"]) == 2
    assert capsys.readouterr().err == (
        "benchmarks/retrieval.py: the counts start at 1 and --width is a multiple of 64; correct them.\n"
    )


def test_the_memory_of_a_pool_is_that_of_a_process_of_its_own(benchmark):
    held_here = np.ones(2**28, np.float32)  # 1.07 GB that the other process does not hold
    found = benchmark.rank_pool(50)
    assert held_here[-1] == 1
    assert (found["images"], found["captions"], found["goal_met"]) == (50, 250, True)
    assert 0.01 < found["peak_gb"] < 0.8
    assert found["seconds"] > 0


@pytest.mark.slow
def test_ranking_all_of_flickr30k_stays_below_two_gigabytes(benchmark):
    found = benchmark.rank_pool()
    assert (found["images"], found["captions"]) == (31_014, 155_070)
    assert found["peak_gb"] < 2


def test_the_guide_says_what_the_report_says():
    root = Path(__file__).resolve().parents[1]
    report = json.loads((root / "benchmarks" / "reports" / "retrieval.json").read_text())
    pool, ways = report["flickr30k"], report["comparisons"]
    said = [
        f"{ways['texts']['times_quicker']:.2f} times as fast as padded",
        f"{ways['ranking']['times_quicker']:.1f} times as fast as by sorting",
        f"({pool['images']:,} pictures, {pool['captions']:,} captions) takes {pool['seconds']:.0f} s",
        f"and {pool['peak_gb']:.2f} GB",
    ]
    guide = " ".join((root / "docs" / "evaluation.md").read_text().split())
    assert [part for part in said if part not in guide] == []
    assert all(way["goal_met"] for way in (*ways.values(), pool))
