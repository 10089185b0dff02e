"""DeepSpeed's ZeRO 2 on CPUs, two processes with gloo: the same weights as DistributedDataParallel, and its resume."""

import json
import shutil

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file

from tests.test_train_processes import ROOT, SEVERAL, launch
from tests.train_tiny import tiny_settings, train_tiny

pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")
pytestmark = pytest.mark.slow
FILE = ROOT / "train_encoder" / "configs" / "accelerate" / "deepspeed_zero2.yaml"
ZERO = ["--config_file", str(FILE), "--num_processes", "2"]
TABLE = "text_model.embeddings.position_embedding.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A start whose temperature is past its bound: DeepSpeed's copy of it must come back too."""
    AcceleratorState._reset_state(reset_partial_state=True)
    folder = train_tiny(tmp_path_factory.mktemp("deepspeed") / "base", max_train_steps=2)
    AcceleratorState._reset_state(reset_partial_state=True)
    path = folder / "model.safetensors"
    save_file(load_file(path) | {"logit_scale": torch.tensor(5.0)}, path, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def runs(base, tmp_path_factory):
    """One run by each engine, and one of DeepSpeed's in chunks, with all that acts between two steps."""
    folder = tmp_path_factory.mktemp("runs")
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "adam_epsilon": 1e-2}
    settings |= {"train_batch_size": 4, "max_train_steps": 4, "learning_rate": 0.1, "adam_weight_decay": 0.1}
    settings |= {"max_grad_norm": 0.05, "checkpointing_steps": 2, "checkpoints_total_limit": 5}
    chunks = settings | {"train_batch_size": 2, "gradient_accumulation_steps": 2}
    for port, (name, options, wanted) in enumerate(
        [("whole", SEVERAL, settings), ("zero", ZERO, settings), ("chunks", ZERO, chunks)], start=29640
    ):
        done = launch(options, tiny_settings(folder / name, **wanted), port)
        assert done.returncode == 0, done.stderr
    return folder, settings


def rows_of(folder):
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


def test_zero_trains_what_whole_weights_do(base, runs):
    folder, _ = runs
    start, whole = load_file(base / "model.safetensors"), load_file(folder / "whole" / "model.safetensors")
    scales = [row["scale"] for row in rows_of(folder / "whole")]
    assert scales[0] == pytest.approx(100, abs=1e-3)
    assert scales[1] < 99
    for name in ("zero", "chunks"):
        for left, right in zip(rows_of(folder / "whole"), rows_of(folder / name), strict=True):
            assert left["loss"] == pytest.approx(right["loss"], abs=1e-4)
            assert left["scale"] == pytest.approx(right["scale"], abs=1e-3)
        found = load_file(folder / name / "model.safetensors")
        assert found["logit_scale"].shape == ()
        assert torch.equal(found[TABLE][:20], start[TABLE][:20])
        assert not torch.equal(found[TABLE][20:77], whole[TABLE][:57])
        for key in whole:
            torch.testing.assert_close(whole[key], found[key], atol=1e-5, rtol=0)


def test_zero_goes_on_bit_for_bit_and_is_an_engine_of_its_own(runs, tmp_path):
    folder, settings = runs
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    shutil.copytree(folder / "zero" / "checkpoint-2", resumed / "checkpoint-2")
    again = tiny_settings(resumed, **settings, resume_from_checkpoint="latest")
    mixed = launch(SEVERAL, again, 29643)
    assert mixed.returncode != 0
    assert "belongs to a run with another engine" in mixed.stderr
    done = launch(ZERO, again, 29644)
    assert done.returncode == 0, done.stderr
    assert "at step 2" in done.stdout
    left, right = (load_file(f / "model.safetensors") for f in (folder / "zero", resumed))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_zero_measures_and_computes_in_bf16_with_a_frozen_tower(base, tmp_path):
    """Retrieval while it trains, kept features, float32 weights that bf16 computed."""
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "train_batch_size": 4}
    settings |= {"mixed_precision": "bf16", "freeze_image_tower": True, "max_train_steps": 2, "eval_steps": 2}
    found = {}
    for port, (name, options) in enumerate({"whole": SEVERAL, "zero": ZERO}.items(), start=29645):
        done = launch(options, tiny_settings(tmp_path / name, **settings), port)
        assert done.returncode == 0, done.stderr
        assert [row for row in done.stdout.splitlines() if "pictures computed" in row], done.stdout
        found[name] = load_file(tmp_path / name / "model.safetensors")
    assert {tensor.dtype for tensor in found["zero"].values()} == {torch.float32}
    left, right = ([row["loss"] for row in rows_of(tmp_path / name)] for name in ("whole", "zero"))
    assert left == pytest.approx(right, abs=1e-3)
    start = load_file(base / "model.safetensors")
    assert all(torch.equal(found["zero"][name], start[name]) for name in start if "vision" in name)


def test_a_stage_that_shards_the_weights_is_one_sentence(base, tmp_path):
    (tmp_path / "zero3.yaml").write_text(FILE.read_text().replace("zero_stage: 2", "zero_stage: 3"))
    settings = tiny_settings(tmp_path / "run", recipe="debias", pretrained_model_name_or_path=str(base))
    done = launch(["--config_file", str(tmp_path / "zero3.yaml"), "--num_processes", "2"], settings, 29647)
    assert done.returncode != 0
    assert "zero_stage is 3, stages up to 2 are supported; set it to 2, or use fsdp2.yaml." in done.stderr
