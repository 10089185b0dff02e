"""Real launches: `accelerate launch`, one process and two."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file

from tests.gradient_step import first_step, largest_difference
from tests.train_tiny import arguments, tiny_settings
from train_encoder.run_folder import list_checkpoints

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parent.parent
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch"]
SEVERAL = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
PLAIN = ["--mixed_precision", "no", "--dynamo_backend", "no"]


def command_of(options, port, module="train_encoder"):
    return [*ACCELERATE, *options, *PLAIN, "--main_process_port", str(port), "-m", module]


def environment_of(port):
    return os.environ | {"CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def launch(options, settings, port, module="train_encoder", before=()):
    command = [*command_of(options, port, module), *before, *arguments(settings)]
    options = {"cwd": ROOT, "env": environment_of(port), "capture_output": True, "text": True, "timeout": 500}
    return subprocess.run(command, **options, check=False)


@pytest.mark.parametrize("recipe", ["short-only", "debias"])
def test_two_processes_equal_one_with_the_double_batch(base, tmp_path, recipe):
    # AdamW with a small epsilon divides a gradient by its own size: a wrong scale (a gather without gradient) would not
    # show, and rounding in gradients near 0 would. With a large one the weights follow the gradients themselves.
    settings = {"recipe": recipe, "pretrained_model_name_or_path": str(base)}
    settings |= {"late_sentences_weight": 0 if recipe == "short-only" else 0.5}
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
    again = tiny_settings(tmp_path / "again", max_train_steps=2, expect_processes=2)
    stopped = launch(["--cpu", "--num_processes", "2", "--num_machines", "1"], again, 29615)
    assert stopped.returncode != 0
    assert "has 1 process(es), expected 2; start several" in stopped.stderr


def test_the_readmes_two_processes_end_well_twenty_times_in_a_row(base, tmp_path):
    """Some gloo processes abort in Python's finalisation (pytorch/pytorch#179291), now and then."""
    joined = (ROOT / "README.md").read_text().replace("\\\n", " ")
    (line,) = (line for line in joined.splitlines() if line.startswith("accelerate launch --multi_gpu"))
    few = {"max_train_steps": 2, "lr_warmup_steps": 1, "train_batch_size": 4, "components": 4}
    few |= {"pretrained_model_name_or_path": str(base), "expect_processes": 2}
    codes = []
    for number in range(20):
        options = arguments(few | {"output_dir": str(tmp_path / str(number))})
        command = [*ACCELERATE, *line.split()[2:], *options]
        environment = environment_of(29670) | {"MASTER_PORT": str(29670 + number)}
        codes.append(subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False).returncode)
    assert codes == [0] * 20


def test_one_process_two_and_chunks_have_one_loss_and_one_gradient(base, tmp_path, record_property):
    """1 x 8, 2 x 4, chunks of 2 in 2 processes, chunks of 4 in one; DistributedDataParallel and gloo as in training."""
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base)}
    settings |= {"stay_close_weight": 0.5, "late_sentences_weight": 0.5}
    frozen = settings | {"freeze_image_tower": True, "image_features_dir": str(tmp_path / "kept")}
    several = {
        "2 x 4": settings | {"train_batch_size": 4},
        "2 x 2 x 2": settings | {"train_batch_size": 2, "contrast_chunks": 2},
        "frozen 2 x 4": frozen | {"train_batch_size": 4},
        "recomputed 2 x 4": settings | {"train_batch_size": 4, "gradient_checkpointing": True},
    }
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({n: tiny_settings(tmp_path / n.replace(" ", ""), **s) for n, s in several.items()}))
    command = [*command_of(SEVERAL, 29616, "tests.gradient_step"), str(path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment_of(29616), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    found = torch.load(f"{path}.pt", weights_only=True)
    assert {step["processes"] for step in found.values()} == {2}
    AcceleratorState._reset_state(reset_partial_state=True)
    whole = first_step(tiny_settings(tmp_path / "one", **settings, train_batch_size=8))
    chunks = {"train_batch_size": 4, "contrast_chunks": 2}
    found["1 x 4 x 2"] = first_step(tiny_settings(tmp_path / "chunks", **settings, **chunks))
    frozen_whole = first_step(tiny_settings(tmp_path / "frozen", **frozen, train_batch_size=8))
    for name, step in found.items():
        difference = largest_difference(frozen_whole if name.startswith("frozen") else whole, step)
        record_property(name, difference)
        assert difference < 1e-5


def test_two_killed_processes_go_on_bit_for_bit_inside_an_epoch(base, tmp_path):
    lines = []
    for number in range(20):
        Image.new("RGB", (48, 48), (12 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": f"a red star. a box {'. a disc' * number}."}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "train_batch_size": 2}
    settings |= {"train_data": str(tmp_path), "max_train_steps": 400, "checkpointing_steps": 3}
    settings |= {"checkpoints_total_limit": 1000, "dataloader_num_workers": 1}
    killed = tmp_path / "killed"
    command = [*command_of(SEVERAL, 29617), *arguments(tiny_settings(killed, **settings))]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment_of(29617), start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while len(list_checkpoints(killed)) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    reached = int(list_checkpoints(killed)[-1].name.removeprefix("checkpoint-"))
    assert reached < 390
    # An epoch is 5 steps: the next 6 cross into another one wherever they begin.
    rest = {"resume_from_checkpoint": "latest"}
    resumed = launch_until(killed, settings | rest, 29618, step=reached + 6)
    whole = launch_until(tmp_path / "whole", settings, 29619, step=reached + 6)
    assert resumed.keys() == whole.keys()
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


def launch_until(folder, settings, port, *, step):
    """Run two processes until checkpoint `step` is there, kill them, return its weights."""
    command = [*command_of(SEVERAL, port), *arguments(tiny_settings(folder, **settings))]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment_of(port), start_new_session=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    path = folder / f"checkpoint-{step}" / "state.pt"
    try:
        deadline = time.monotonic() + 300
        while not path.is_file() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return torch.load(path, weights_only=True)["towers"]


def check_shards(start, one, others):
    """Shards trained what whole weights (`one`) did, and kept the first rows of the start's position table."""
    table = "text_model.embeddings.position_embedding.weight"
    for other in others:
        assert torch.equal(other[table][:20], start[table][:20])
        for name in one:
            torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=0)


def resume_shards(tmp_path, settings, port):
    """Go on from step 2 of the run in `shards`: the same bits; returns the resumed run's settings."""
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    (tmp_path / "shards" / "checkpoint-2").rename(resumed / "checkpoint-2")
    again = tiny_settings(resumed, **settings, resume_from_checkpoint="latest")
    done = launch(SEVERAL, again, port, module="tests.sharded_run")
    assert done.returncode == 0, done.stderr
    assert "at step 2" in done.stdout
    left, right = (load_file(folder / "model.safetensors") for folder in (tmp_path / "shards", resumed))
    assert all(torch.equal(left[name], right[name]) for name in left)
    return again


def test_shards_train_what_whole_weights_do_and_go_on_from_a_checkpoint(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "adam_epsilon": 1e-2}
    settings |= {"train_batch_size": 4, "max_train_steps": 4, "learning_rate": 0.1, "adam_weight_decay": 0.1}
    settings |= {"checkpointing_steps": 2, "checkpoints_total_limit": 5}
    whole = launch(SEVERAL, tiny_settings(tmp_path / "whole", **settings), 29620)
    assert whole.returncode == 0, whole.stderr
    folders = {"shards": settings, "chunks": settings | {"train_batch_size": 2, "contrast_chunks": 2}}
    for port, (name, wanted) in enumerate(folders.items(), start=29621):
        shards = launch(SEVERAL, tiny_settings(tmp_path / name, **wanted), port, module="tests.sharded_run")
        assert shards.returncode == 0, shards.stderr
    start, one, *others = (load_file(f / "model.safetensors") for f in (base, tmp_path / "whole", *(
        tmp_path / name for name in folders)))  # fmt: skip
    assert all(other["logit_scale"].shape == () for other in others)
    check_shards(start, one, others)
    again = resume_shards(tmp_path, settings, 29624)
    # Whole weights do not go on from shards: the optimizer's state has another form.
    mixed = launch(SEVERAL, again, 29625)
    assert mixed.returncode != 0
    assert "belongs to a run with another engine" in mixed.stderr
