"""SIGTERM and Ctrl-C: with data workers, with two processes, twice, in the middle of an evaluation."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from tests.ctrl_c import hear_ctrl_c
from tests.test_train_processes import ROOT, SEVERAL, command_of, environment_of
from tests.train_tiny import arguments, tiny_settings
from train_encoder import heldout, watch
from train_encoder import train as loop
from train_encoder.__main__ import main
from train_encoder.run_folder import list_checkpoints
from train_encoder.step import train_step

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
ENDLESS = {"max_train_steps": 100_000}


def test_sigterm_in_an_evaluation_leaves_it_out_and_a_second_one_changes_nothing(base, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(heldout, "FAMILIES", 3)
    monkeypatch.setattr(heldout, "SHORT", 12)
    read = watch._image_features
    calls = []

    def read_and_signal(run, *parts):
        calls.append(run.step)
        if run.step:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        return read(run, *parts)

    monkeypatch.setattr(watch, "_image_features", read_and_signal)
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "max_train_steps": 9, "eval_steps": 2}
    folder = tmp_path / "run"
    assert main(arguments(tiny_settings(folder, **settings))) == 143
    assert calls == [0, 0, 2]  # both sets at the start, then not even the first
    rows = [json.loads(line) for line in (folder / "eval_log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0]
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-3"]
    assert "stopped by SIGTERM after step 3, which is saved" in capsys.readouterr().out


def test_ctrl_c_is_one_sentence_with_the_last_checkpoint(tmp_path, monkeypatch, capsys):
    def step_and_interrupt(run, batch):
        if run.step == 3:
            raise KeyboardInterrupt
        return train_step(run, batch)

    monkeypatch.setattr(loop, "train_step", step_and_interrupt)
    settings = {"max_train_steps": 9, "checkpointing_steps": 2}
    assert main(arguments(tiny_settings(tmp_path / "run", **settings))) == 130
    assert capsys.readouterr().err.splitlines()[-1] == (
        "train_encoder: stopped by Ctrl-C after step 3; the last good checkpoint is checkpoint-2: go on with "
        "--resume_from_checkpoint latest."
    )


def start(command, port=29650):
    return subprocess.Popen(
        command, cwd=ROOT, env=environment_of(port), start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_ctrl_c,
    )  # fmt: skip


def wait_for_steps(process, folder, count=3):
    log, deadline = folder / "train_log.jsonl", time.monotonic() + 300
    while not (log.is_file() and log.read_text().count("\n") >= count):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def steps_of(folder):
    return [json.loads(line)["step"] for line in (folder / "train_log.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_to_the_whole_group_is_the_runs_alone(base, tmp_path, sent, code):
    """Data workers get it too, as from a scheduler or a terminal; PyTorch's own handler would end them."""
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "dataloader_num_workers": 2}
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "train_encoder", *arguments(tiny_settings(folder, **settings, **ENDLESS))]
    process = start(command)
    wait_for_steps(process, folder)
    os.killpg(process.pid, sent)
    said, error = process.communicate(timeout=120)
    assert process.returncode == code, error
    assert "Traceback" not in error
    if sent == signal.SIGTERM:
        (saved,) = list_checkpoints(folder)
        assert f"stopped by SIGTERM after step {steps_of(folder)[-1]}, which is saved" in said
        state = torch.load(saved / "state.pt", weights_only=True)
        assert state["step"] == steps_of(folder)[-1]
    else:
        assert "train_encoder: stopped by Ctrl-C after step " in error
        assert list_checkpoints(folder) == []


@pytest.mark.slow
def test_the_launchers_sigterm_stops_two_processes_with_workers_at_one_step(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "dataloader_num_workers": 1}
    folder = tmp_path / "run"
    process = start([*command_of(SEVERAL, 29651), *arguments(tiny_settings(folder, **settings, **ENDLESS))], 29651)
    wait_for_steps(process, folder)
    process.send_signal(signal.SIGTERM)  # the launcher alone, as a container's stop does
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)  # and once more
    said, error = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "DataLoader worker" not in error
    last = steps_of(folder)[-1]
    assert [path.name for path in list_checkpoints(folder)] == [f"checkpoint-{last}"]
    assert f"stopped by SIGTERM after step {last}, which is saved" in said
    assert not (folder / "config.json").exists()
    state = torch.load(folder / f"checkpoint-{last}" / "state.pt", weights_only=True)
    assert (state["step"], len(state["rng"])) == (last, 2)
