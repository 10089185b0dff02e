"""The benchmark of lengthening runs on texts that are there, and its shipped report says what it prints."""

import json
from pathlib import Path

from tiny import LONG_PROMPT

from benchmarks import lengthen

ROOT = Path(__file__).parent.parent


def test_it_measures_all_three_steps_and_says_which_goals_are_met(tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(json.dumps({"caption": f"{LONG_PROMPT} {LONG_PROMPT}"}) + "\n" for _ in range(4)))
    given = ["--small", "--batch", "4", "--rounds", "1", "--threads", "1", "--texts", str(texts)]
    assert lengthen.main([*given, "--out", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["cpu_seconds"].keys() == {"whole", "lengthen", "floor"}
    assert 77 < report["mean_tokens"] <= 248
    assert capsys.readouterr().out.strip() == lengthen.describe(report)
    assert lengthen.main(["--texts", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl does not exist" in capsys.readouterr().err


def test_the_shipped_report_is_of_the_size_that_the_goals_are_for():
    report = json.loads((ROOT / "benchmarks" / "reports" / "lengthen.json").read_text())
    assert (report["size"]["text_width"], report["size"]["text_layers"]) == (512, 12)
    found = report["processor_time"]
    said = (ROOT / "docs" / "which-way.md").read_text()
    assert f"{found['against_whole_step']:.1f} times" in said
