"""Long runs: SIGTERM, a full disk, a loss that is not finite, checkpoints from before a setting existed."""

import json
import os
import resource
import signal
import subprocess

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from tests.train_tiny import arguments, tiny_config, tiny_settings, train_tiny
from train_encoder import train as loop
from train_encoder.__main__ import main
from train_encoder.prepare import prepare
from train_encoder.run_folder import CheckpointFault, list_checkpoints, load_checkpoint, lock_folder, save_checkpoint
from train_encoder.settings import TrainConfig
from train_encoder.step import train_step
from train_encoder.train import make_loader

pytestmark = pytest.mark.usefixtures("fresh_accelerator")


def test_sigterm_saves_and_the_resumed_run_equals_the_uninterrupted_one(base, tmp_path, monkeypatch, capsys):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "max_train_steps": 5}
    whole = train_tiny(tmp_path / "whole", **settings)

    def step_and_signal(run, batch):
        row = train_step(run, batch)
        if run.step == 1:
            os.kill(os.getpid(), signal.SIGTERM)  # arrives between two steps: the second is made and then saved
        return row

    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(loop, "train_step", step_and_signal)
    stopped = tmp_path / "stopped"
    assert main(arguments(tiny_settings(stopped, **settings))) == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    assert "stopped by SIGTERM after step 2, which is saved" in capsys.readouterr().out
    assert [path.name for path in list_checkpoints(stopped)] == ["checkpoint-2"]
    assert not (stopped / "config.json").exists()
    monkeypatch.setattr(loop, "train_step", train_step)
    AcceleratorState._reset_state(reset_partial_state=True)
    train_tiny(stopped, **settings, resume_from_checkpoint="latest")
    left, right = (load_file(folder / "model.safetensors") for folder in (whole, stopped))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path):
    state = {"step": 1, "weights": torch.arange(200_000.0), "trajectory": "{}"}
    save_checkpoint(tmp_path, state, keep=1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))  # no file may grow past 100 kB
        with pytest.raises(CheckpointFault, match="^checkpoint-2 cannot be written: a file would be") as fault:
            save_checkpoint(tmp_path, state | {"step": 2}, keep=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(fault.value).endswith(
        "; the last good checkpoint is checkpoint-1: make room and go on with --resume_from_checkpoint latest."
    )
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
    kept = load_checkpoint(tmp_path / "checkpoint-1", trajectory={}, before={})
    assert torch.equal(kept["weights"], state["weights"])


def test_a_run_on_a_full_disk_ends_with_one_sentence(tmp_path, monkeypatch, capsys):
    def half(state, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", half)
    settings = tiny_settings(tmp_path / "run", max_train_steps=3, checkpointing_steps=2)
    assert main(arguments(settings)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "train_encoder: checkpoint-2 cannot be written: the disk is full (No space left on device: "
        f"{tmp_path / 'run'}); no checkpoint is there: make room and start it again."
    )
    assert not list((tmp_path / "run").glob(".*"))


def test_a_disk_that_is_full_at_the_end_is_one_sentence(tmp_path, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # the log fits, the weights do not
        code = main(arguments(tiny_settings(tmp_path / "run")))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err.splitlines()[-1]
    assert code == 2
    assert error == (
        f"train_encoder: a file would be larger than this system allows (File too large: {tmp_path / 'run'}); "
        "no checkpoint is there: make room and start it again."
    )
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["train_log.jsonl"]


SIZES = {  # of a disk in kB, with the number of checkpoints that fit on it and what ends the run
    "the log": (4, 0, "the disk is full"),
    "the first checkpoint": (200, 0, "checkpoint-2 cannot be written: the disk is full"),
    "the second checkpoint": (600, 1, "checkpoint-4 cannot be written: the disk is full"),
}


@pytest.mark.parametrize(("size", "fit", "said"), SIZES.values(), ids=SIZES)
def test_a_small_disk_ends_the_run_with_one_sentence(tmp_path, capsys, size, fit, said):
    """Case 134: a disk that is really full, wherever that comes; what fitted stays whole, and nothing of the rest."""
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", tmp_path], check=False)
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        folder = tmp_path / "run"
        if size == 4:
            folder.mkdir()
            (tmp_path / "filler").write_bytes(bytes(4096))
        code = main(arguments(tiny_settings(folder, max_train_steps=5, checkpointing_steps=2)))
        error = capsys.readouterr().err.splitlines()[-1]
        assert code == 2
        assert error.startswith(f"train_encoder: {said} (No space left on device: ")
        saved = list_checkpoints(folder)
        assert len(saved) == fit
        assert all(torch.load(path / "state.pt", weights_only=True)["step"] == 2 for path in saved)
        stays = (
            "no checkpoint is there: make room and start it again."
            if not fit
            else ("the last good checkpoint is checkpoint-2: make room and go on with --resume_from_checkpoint latest.")
        )
        assert error.endswith(f"; {stays}")
        assert {path.name for path in folder.iterdir()} <= {"train_log.jsonl", *(path.name for path in saved)}
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_loss_that_is_not_finite_names_the_pairs(tmp_path):
    run = prepare(tiny_config(tmp_path, train_batch_size=3))
    batch = next(iter(make_loader(run)))
    batch["pixel_values"][1] = float("nan")
    with pytest.raises(
        FloatingPointError, match=r"^the loss of step 1 is nan .* with the pairs 0, 1, 2; the same settings lead"
    ):
        train_step(run, batch)


def test_checkpoints_that_do_not_name_a_later_setting_go_on(tmp_path):
    """A setting that came later had a meaning before: its default, or for `text_pass` the old way to read."""
    folder = train_tiny(tmp_path / "run", max_train_steps=4, checkpointing_steps=2, text_pass="grouped")
    path = folder / "checkpoint-4" / "state.pt"
    state = torch.load(path, weights_only=True)
    old = json.loads(state["trajectory"])
    for name in ("text_pass", "contrast_chunks", "freeze_image_tower"):
        del old[name]
    torch.save(state | {"trajectory": json.dumps(old)}, path)
    now = old | {"text_pass": "grouped", "contrast_chunks": 1}
    options = {"before": TrainConfig.before()}
    assert load_checkpoint(path.parent, trajectory=now, **options)["step"] == 4
    with pytest.raises(ValueError, match="belongs to a run with another text_pass"):
        load_checkpoint(path.parent, trajectory=now | {"text_pass": "packed"}, **options)


def test_only_the_newest_checkpoints_stay(tmp_path):
    for step in (1, 2, 10):
        save_checkpoint(tmp_path, {"step": step}, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-2", "checkpoint-10"]


def test_a_folder_belongs_to_one_run_at_a_time(tmp_path, capsys):
    folder = train_tiny(tmp_path / "run", max_train_steps=2)
    (folder / "config.json").unlink()  # as if it had been stopped before its end
    log = (folder / "train_log.jsonl").read_bytes()
    with lock_folder(folder):
        assert main(arguments(tiny_settings(folder, max_train_steps=3))) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        f"train_encoder: output_dir {folder} is in use by another run; wait for its end, or name another output_dir."
    )
    assert (folder / "train_log.jsonl").read_bytes() == log
    train_tiny(folder, max_train_steps=3)  # the lock goes with whoever held it


def test_a_start_behind_checkpoints_that_are_there_is_refused(tmp_path, capsys):
    """Their numbers are higher: its own would be the ones that `checkpoints_total_limit` removes."""
    settings = {"max_train_steps": 4, "checkpointing_steps": 2, "checkpoints_total_limit": 3}
    folder = train_tiny(tmp_path / "run", **settings)
    (folder / "config.json").unlink()  # as if it had been stopped before its end
    for resume, step, names in ((None, 0, "checkpoint-2, checkpoint-4"), ("checkpoint-2", 2, "checkpoint-4")):
        assert main(arguments(tiny_settings(folder, **settings, resume_from_checkpoint=resume))) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"train_encoder: output_dir {folder} has {names} of an earlier run and this one starts at step {step}; "
            "go on with --resume_from_checkpoint latest, delete that run with --overwrite_output_dir, or name another "
            "output_dir."
        )
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-2", "checkpoint-4"]
    train_tiny(folder, **settings, resume_from_checkpoint="latest")


def test_a_log_that_the_disk_cannot_hold_is_one_sentence(tmp_path, monkeypatch, capsys):
    def full(log, row):
        raise OSError(28, "No space left on device", str(tmp_path / "train_log.jsonl"))

    monkeypatch.setattr("train_encoder.log.TrainLog.write", full)
    assert main(arguments(tiny_settings(tmp_path / "run"))) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_encoder: the disk is full (No space left on device: {tmp_path / 'train_log.jsonl'}); no checkpoint is "
        "there: make room and start it again."
    )
