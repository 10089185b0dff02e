"""Real launches: `accelerate launch`, one process and two."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from tests.train_tiny import arguments, tiny_settings, train_tiny

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
SEVERAL = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
PLAIN = ["--mixed_precision", "no", "--dynamo_backend", "no"]


def launch(options, settings, port):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": str(port)}
    command = [*ACCELERATE, *options, *PLAIN, "--main_process_port", str(port), "-m", "train_encoder"]
    return subprocess.run(
        [*command, *arguments(settings)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    AcceleratorState._reset_state(reset_partial_state=True)
    folder = train_tiny(tmp_path_factory.mktemp("processes") / "base", max_train_steps=2)
    AcceleratorState._reset_state(reset_partial_state=True)
    return folder


@pytest.mark.parametrize("recipe", ["short-only", "debias"])
def test_two_processes_equal_one_with_the_double_batch(base, tmp_path, recipe):
    # AdamW with a small epsilon divides a gradient by its own size: a wrong scale (a gather without gradient) would not
    # show, and rounding in gradients near 0 would. With a large one the weights follow the gradients themselves.
    settings = {"recipe": recipe, "pretrained_model_name_or_path": str(base)}
    settings |= {"stay_close_weight": 0.5, "adam_epsilon": 1e-2, "learning_rate": 0.1}
    alone = ["--num_processes", "1", "--num_machines", "1"]
    one = launch(alone, tiny_settings(tmp_path / "one", **settings, train_batch_size=16), 29612)
    two = launch(SEVERAL, tiny_settings(tmp_path / "two", **settings, train_batch_size=8, expect_processes=2), 29613)
    assert one.returncode == 0, one.stderr
    assert two.returncode == 0, two.stderr
    assert "2 process(es) x 8 pairs" in two.stdout
    logs = [(tmp_path / name / "train_log.jsonl").read_text().splitlines() for name in ("one", "two")]
    for left, right in zip(*(map(json.loads, lines) for lines in logs), strict=True):
        assert left["loss"] == pytest.approx(right["loss"], abs=1e-5)
        assert left["lr"] == right["lr"]
    start, left, right = (load_file(f / "model.safetensors") for f in (base, tmp_path / "one", tmp_path / "two"))
    assert (left["visual_projection.weight"] - start["visual_projection.weight"]).abs().max() > 0.01
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-5, rtol=0)


def test_plain_cpu_launch_says_that_it_is_one_process(tmp_path):
    settings = tiny_settings(tmp_path / "run", max_train_steps=2)
    done = launch(["--cpu", "--num_processes", "2", "--num_machines", "1"], settings, 29614)
    assert done.returncode == 0, done.stderr
    assert "starts 1 process whatever --num_processes says" in done.stdout
    stopped = launch(
        ["--cpu", "--num_processes", "2", "--num_machines", "1"], settings | {"expect_processes": 2}, 29615
    )
    assert stopped.returncode != 0
    assert "has 1 process(es), expected 2; start several" in stopped.stderr
