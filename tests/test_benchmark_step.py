"""The benchmark of the training step: equal work is compared, operations are counted right, faults are one sentence."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import clip_step, gpu_train, train_step
from benchmarks.encode import clip_tokenizer

WORDS = "red blue green small large box star ring house river boat window table garden".split()


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Captions of 10 to 60 sentences with 6 words each."""
    path = tmp_path_factory.mktemp("texts") / "captions.jsonl"
    sentences = [" ".join(WORDS[n % 9 : n % 9 + 5]).capitalize() + " here." for n in range(60)]
    lines = [json.dumps({"caption": " ".join(sentences[: 10 + 10 * n])}) for n in range(6)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def ready(texts):
    tokenizer = clip_tokenizer()
    found = clip_step.read_texts(texts, tokenizer, count=4)
    model = clip_step.make_model(train_step.SMALL, tokenizer, attention="eager")
    return model, clip_step.make_batch(found, tokenizer, train_step.SMALL), found, tokenizer


def test_texts_are_cut_at_sentence_ends_and_counted_operations_are_those_that_torch_counts(ready):
    _, batch, texts, tokenizer = ready
    lengths = [len(tokenizer(text)["input_ids"]) for text in texts]
    assert all(text.endswith("here.") for text in texts)
    assert max(lengths) <= 248
    assert sum(lengths) / len(lengths) == pytest.approx(180, abs=25)  # the first two are short whatever the cut
    assert batch["input_ids"].shape[1] == max(lengths)
    model, batch, _, tokenizer = ready
    step = clip_step.make_step("padded", model, batch, train_step.SMALL)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        step.loss()
    counts = clip_step.count_operations(batch, train_step.SMALL, end_id=tokenizer.eos_token_id)
    assert 2 * counts["padded"].whole == pytest.approx(counter.get_total_flops(), rel=0.002)
    assert counts["floor"].image == counts["padded"].image
    assert counts["floor"].text < 0.7 * counts["padded"].text


def test_all_ways_have_one_loss_and_one_gradient(ready):
    model, batch, *_ = ready
    steps = train_step.steps_to_compare(model, batch, train_step.SMALL)
    found = train_step.differences(steps)
    assert set(found) == {"ours", "open_clip", "frozen"}
    assert max(each["gradient"] for each in found.values()) < 1e-6  # float64, but for eager attention's softmax
    with torch.no_grad():
        steps["ours"].module.clip.text_projection.weight[0] += 0.1
    with pytest.raises(RuntimeError, match="ours differs from the padded step by"):
        train_step.differences(steps)


def test_the_report_holds_every_time_and_its_share_of_the_floor(texts, tmp_path, capsys):
    out = tmp_path / "step.json"
    options = ["--small", "--batch", "3", "--rounds", "2", "--texts", str(texts), "--no-memory", "--out", str(out)]
    assert train_step.main(options) == 0
    report = json.loads(out.read_text())
    time = report["processor_time"]
    assert set(time["speedup"]) == set(report["seconds"]) == set(train_step.WAYS)
    for name in ("ours", "frozen"):
        assert time["share_of_floor"][name] == pytest.approx(time["speedup"][name] / time["floor_speedup"][name])
    assert "goals: step" in capsys.readouterr().out


def test_faults_are_one_sentence(texts, capsys):
    assert train_step.main(["--texts", "nowhere.jsonl"]) == 2
    assert train_step.main(["--texts", str(texts), "--batch", "7", "--small"]) == 2
    assert train_step.main(["--batch", "1"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(": ")[0] for line in errors] == ["benchmarks/train_step.py"] * 3
    assert "holds 6 captions, a batch needs 7" in errors[1]


def test_the_gpus_script_runs_on_a_cpu_and_counts_against_the_cards_peak(texts, tmp_path, capsys):
    out = tmp_path / "gpu.json"
    options = ["--device", "cpu", "--small", "--batch", "2", "--rounds", "1", "--texts", str(texts), "--out", str(out)]
    assert gpu_train.main(options) == 0
    report = json.loads(out.read_text())
    assert (report["card"], report["share_of_peak"]) == ("cpu", None)
    seconds = report["ways"]["ours"]["seconds"][0]
    assert report["images_per_second"]["ours"] == pytest.approx(2 / seconds)
    assert "of the floor" in capsys.readouterr().out
    assert gpu_train.peak_of_card("NVIDIA H200") == 989
    assert gpu_train.peak_of_card("some card") is None


@pytest.mark.slow
def test_peak_memory_is_that_of_a_fresh_process(texts):
    ballast = torch.ones(100_000_000)  # 400 MB that the child must not be charged with
    options = ["--small", "--batch", "3", "--rounds", "1", "--texts", str(texts)]
    peaks = train_step.peak_of("ours", _parse(options))
    assert peaks["before_mb"] <= peaks["peak_mb"] < train_step.peak_megabytes() - ballast.nbytes / 2e6


def _parse(options):
    import argparse

    return argparse.Namespace(
        small=True, batch=3, rounds=1, texts=Path(options[-1]), threads=1, attention="eager", only=None
    )


def test_the_guide_says_what_the_report_says():
    root = Path(__file__).resolve().parents[1]
    report = json.loads((root / "benchmarks" / "reports" / "train_step.json").read_text())
    time, memory = report["processor_time"], {name: peak["peak_mb"] for name, peak in report["memory"].items()}
    said = [
        f"{time['speedup']['ours']:.2f} times as fast",
        f"counting operations allows {time['floor_speedup']['ours']:.2f}",
        f"text side {time['text_speedup']['ours']:.2f} times, of {time['floor_speedup']['text']:.2f}",
        f"kept {time['speedup']['frozen']:.2f} times, of {time['floor_speedup']['frozen']:.2f}",
        f"{memory['ours']:.0f} MB against {memory['padded']:.0f} MB, and {memory['open_clip']:.0f} MB of",
        f"{report['pairs']} pairs, captions of {report['mean_tokens']['long']:.0f} tokens",
    ]
    guide = " ".join((root / "docs" / "training.md").read_text().split())
    assert [part for part in said if part not in guide] == []
