"""The benchmarks measure what they say, refuse to compare unequal work, and fail in one sentence."""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd import encoder_folder

ROOT = Path(__file__).parent.parent


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def encode():
    return load_script("encode")


@pytest.fixture(scope="module")
def generate():
    return load_script("generate")


def test_the_encoding_report_holds_every_time_and_its_ratio(encode, tmp_path, capsys):
    out = tmp_path / "encode.json"
    assert encode.main(["--width", "64", "--layers", "1", "--rounds", "4", "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["encoder"] == {"width": 64, "layers": 1, "positions": 248, "vocabulary": 49408}
    assert report["prompt_tokens"] > 77
    assert {name: len(times) for name, times in report["seconds"].items()} == {"bare": 4, "ours": 4, "diffusers": 4}
    median = {name: statistics.median(times) for name, times in report["seconds"].items()}
    assert report["ratio"]["ours"] == pytest.approx(median["ours"] / median["bare"])
    assert report["ratio"]["diffusers"] == pytest.approx(median["diffusers"] / median["bare"])
    assert report["goal_met"] is (report["ratio"]["ours"] <= 1.10)
    assert f"ratio {report['ratio']['ours']:.3f}   goal <= 1.10: " in capsys.readouterr().out


def test_the_turns_begin_with_another_way_each_round_and_other_states_are_not_compared(encode):
    called = []
    ways = {name: lambda name=name: called.append(name) for name in "abc"}
    encode.take_turns(ways, rounds=3)
    assert "".join(called) == "abcbcacab"
    pipe = encode.random_pipeline(width=64, layers=1)
    ways = encode.ways_to_encode(pipe, encode.PROMPT)
    encode.check_equal(ways)
    other = encode.ways_to_encode(pipe, "another prompt")
    with pytest.raises(RuntimeError, match="ours gives other states than the bare encoder"):
        encode.check_equal(ways | {"ours": other["ours"]})


@pytest.mark.parametrize("script", ["encode", "generate"])
def test_absent_weights_are_one_sentence(script, request, tmp_path, monkeypatch, capsys):
    module = request.getfixturevalue(script)
    monkeypatch.setattr(encoder_folder, "WEIGHTS", tmp_path)
    flag = "--embedded" if script == "encode" else "--in-this-process"
    assert module.main([flag]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"benchmarks/{script}.py: the embedded model ")
    assert err.count("\n") == 1


def test_the_peak_is_that_of_the_child_and_its_parent_loads_no_torch():
    code = """
import sys
import generate
said, seconds, small = generate.run_measured([sys.executable, "-c", "print('done')"])
_, _, large = generate.run_measured([sys.executable, "-c", "print(len(b'1' * 100_000_000))"])
assert said == "done\\n" and seconds > 0
assert "torch" not in sys.modules
print(small, large)
"""
    command = [sys.executable, "-c", code]
    # A fresh process: this one has loaded torch, and a child's peak starts from its parent's.
    done = subprocess.run(command, cwd=ROOT / "benchmarks", env=os.environ | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=True)  # fmt: skip
    small, large = (float(value) for value in done.stdout.split())
    assert small < 100
    assert large - small == pytest.approx(100, abs=20)


def test_a_failing_command_is_named_by_its_last_line(generate):
    with pytest.raises(ValueError, match="^no such model; make it[.]$"):
        generate.run_measured([sys.executable, "-c", "raise SystemExit('debias-sd: error: no such model; make it.')"])


@pytest.mark.slow
def test_the_picture_report_says_which_goals_are_met(tmp_path):
    tiny_pipeline().save_pretrained(tmp_path / "sd")
    encoders = [save_tiny_clip(tmp_path / name, window=248, seed=seed) for seed, name in enumerate(("one", "two"))]
    out = tmp_path / "generate.json"
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "generate.py"),
        "--base",
        str(tmp_path / "sd"),
        "--rounds",
        "2",
    ]
    command += [part for folder in encoders for part in ("--encoder", str(folder))]
    done = subprocess.run([*command, "--out", str(out)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(out.read_text())
    assert report["picture_seconds"] == statistics.median(report["warm_seconds"])
    assert len(report["warm_seconds"]) == 2
    assert report["cold_seconds"] > report["import_seconds"] + report["first_seconds"]
    assert 100 < report["peak_mb"] < 4000
    assert report["size"] == [48, 48]
    assert report["goals_met"] == {name: report[name] < goal for name, goal in report["goals"].items()}
    assert set(report["goals"]) == {"picture_seconds", "peak_mb", "compare_seconds"}
    assert done.stdout.count("goal < ") == 3
