"""The benchmark of prompts compares equal work on texts that are there, and says what it could not compare."""

import importlib.util
import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def prompts(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location("benchmark_prompts", FOLDER / "prompts.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_report_holds_each_comparison_and_its_ratio(prompts, tmp_path, capsys):
    rows = [{"prompt": "a red cat " * number} for number in (1, 20, 90)] + [{"caption": "a dog"}]
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "report.json"
    options = ["--width", "64", "--layers", "1", "--prompts", "4", "--texts", str(tmp_path), "--out", str(out)]
    assert prompts.main(options) == 0
    report = json.loads(out.read_text())
    assert report["source"] == tmp_path.name
    assert report["tokens"] == {"median": 33.5, "longest": 272, "past_one_window": 1}
    has_compel = importlib.util.find_spec("compel") is not None
    found = [(one["own"], one["other"], one["batch"], one["prompts"]) for one in report["comparisons"]]
    assert found == [
        *[("ours", "diffusers", 1, 3), ("ours", "diffusers", 16, 3)],
        *[("ours", "compel", 1, 4), ("ours", "compel", 16, 4)] * has_compel,
        *[("sentences", "chunked", 1, 1), ("sentences", "chunked", 16, 1)],
    ]
    for one in report["comparisons"]:
        totals = one["totals"]
        assert one["ratio"] == pytest.approx(totals[one["own"]]["seconds"] / totals[one["other"]]["seconds"])
        assert one["goal_met"] is (one["ratio"] <= one["goal"])
    printed = capsys.readouterr().out
    assert printed.count("goal <= 1.05: ") == 2
    assert ("compel is not installed" in printed) is not has_compel


def test_without_the_texts_they_are_made(prompts, tmp_path):
    texts, source = prompts.real_prompts(tmp_path / "absent", 500)
    lengths = sorted(len(text.split()) for text in texts)
    assert (len(texts), source) == (500, "random words")
    assert lengths[0] < 60
    assert lengths[-1] > 300
    assert prompts.real_prompts(tmp_path / "absent", 500)[0] == texts


def test_other_work_is_not_compared(prompts):
    pipe = prompts.random_pipeline(width=64, layers=1)
    ways = prompts.ways_to_encode(pipe)
    prompts.check_equal(ways, "a cat")
    with pytest.raises(RuntimeError, match="ours gives other states than diffusers"):
        prompts.check_equal(ways | {"ours": lambda texts: ways["ours"](["a dog"])}, "a cat")


def test_wrong_options_are_one_sentence(prompts, capsys):
    assert prompts.main(["--prompts", "0"]) == 2
    assert capsys.readouterr().err == (
        "benchmarks/prompts.py: --prompts and --layers start at 1 and --width is a multiple of 64; correct them.\n"
    )
