"""Ten kills: two processes ended by SIGKILL at random steps, gone on with until they are done, are the run without."""

import json
import random
import signal
import subprocess

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests.test_train_processes import ROOT, SEVERAL, command_of, environment_of, launch
from tests.tiny_world import save_tiny_clip
from tests.train_tiny import arguments, tiny_settings
from train_encoder.run_folder import list_checkpoints

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # a dozen launches of two processes
KILLS, STEPS, SEED = 10, 60, 0


def write_records(folder):
    """Pictures with captions; an epoch of them is 5 steps, and one record is broken."""
    folder.mkdir()
    lines = []
    for number in range(20):
        Image.new("RGB", (48, 48), (12 * number, 0, 0)).save(folder / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": f"A red star. A box {'. A disc' * number}."}))
    (folder / "7.png").write_bytes(b"broken")
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    return folder


def kill_run(settings, port, *, step, where):
    """Start the run, or go on with it, until it kills itself and its launcher at `step`."""
    before = [str(step), where]
    command = [*command_of(SEVERAL, port, "tests.killed_run"), *before, *arguments(settings)]
    options = {"cwd": ROOT, "env": environment_of(port), "start_new_session": True, "timeout": 300}
    done = subprocess.run(command, **options, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_ten_kills_at_random_steps_change_no_bit(tmp_path):
    """Case 127: the weights, the log and the broken records' count of the run that nobody killed."""
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(save_tiny_clip(tmp_path / "start"))}
    settings |= {"train_data": str(write_records(tmp_path / "data")), "train_batch_size": 2}
    settings |= {"max_train_steps": STEPS, "checkpointing_steps": 3, "checkpoints_total_limit": 2}
    settings |= {"stay_close_weight": 0.5}
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    again = tiny_settings(killed, **settings, resume_from_checkpoint="latest")
    rng, begins = random.Random(SEED), []
    for number in range(KILLS):
        begins.append(max([0, *(int(path.name.removeprefix("checkpoint-")) for path in list_checkpoints(killed))]))
        where = rng.choice(["step", "step", "checkpoint"])
        kill_run(again, 29700 + number, step=begins[-1] + rng.randint(1, 9), where=where)
    assert begins == sorted(begins)
    assert 0 < begins[-1] < STEPS - 9
    done = launch(SEVERAL, again, 29720)
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stdout
    done = launch(SEVERAL, tiny_settings(whole, **settings), 29721)
    assert done.returncode == 0, done.stderr
    left, right = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    logs = [
        [json.loads(line) for line in (one / "train_log.jsonl").read_text().splitlines()] for one in (whole, killed)
    ]
    assert [row | {"seconds": 0} for row in logs[0]] == [row | {"seconds": 0} for row in logs[1]]
    stories = [json.loads((folder / "provenance.json").read_text()) for folder in (whole, killed)]
    assert stories[0]["data"] == stories[1]["data"]
    assert stories[0]["data"]["broken"] == {"not a picture": 1}
    assert not [path.name for path in killed.iterdir() if path.name.startswith(".")]
