"""NaN and infinity in a run: nothing of them is saved or shipped, what was good stays, one sentence says what to do."""

import json

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file

from tests import spoiled_run
from tests.test_train_processes import SEVERAL, launch
from tests.tiny_world import save_tiny_clip
from tests.train_tiny import arguments, tiny_settings, train_tiny
from train_encoder.__main__ import main
from train_encoder.run_folder import list_checkpoints

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
SETTINGS = {"max_train_steps": 9, "checkpointing_steps": 3, "checkpoints_total_limit": 1}
ADVICE = (
    "the same settings lead here again: start a new run, in another output_dir, with a lower learning_rate or with "
    "max_grad_norm."
)
CASES = {
    "NaN in a gradient": ("gradient", "nan", "the run holds NaN or infinity ("),
    "infinity in a gradient": ("gradient", "inf", "the run holds NaN or infinity ("),
    "NaN where no loss shows it": ("rare", "nan", "the run holds NaN or infinity (3 tensors, the first is towers."),
    "NaN in a moment": ("moment", "nan", "the run holds NaN or infinity (optimizer.state."),
    "infinity in a moment": ("moment", "inf", "the run holds NaN or infinity (optimizer.state."),
}


@pytest.mark.parametrize(("where", "value", "said"), CASES.values(), ids=CASES)
def test_the_last_good_checkpoint_stays(tmp_path, monkeypatch, capsys, where, value, said):
    """Case 127: something of step 6 is not finite, with checkpoints at 3 and 6, of which one is kept."""
    spoiled_run.patch(monkeypatch.setattr, where, float(value))
    folder = tmp_path / "run"
    assert main(arguments(tiny_settings(folder, **SETTINGS))) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"train_encoder: checkpoint-6 is not saved: {said}")
    assert error.endswith(f"); checkpoint-3 stays, but {ADVICE}")
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-3", "train_log.jsonl"]
    state = torch.load(folder / "checkpoint-3" / "state.pt", weights_only=True)
    assert all(torch.isfinite(tensor).all() for tensor in state["towers"].values())
    monkeypatch.undo()
    AcceleratorState._reset_state(reset_partial_state=True)
    resumed = train_tiny(folder, **SETTINGS, resume_from_checkpoint="latest")  # the fault was none of the run's own
    assert json.loads((resumed / "provenance.json").read_text())["final"]["step"] == 9


def test_an_encoder_that_is_not_finite_is_not_written(tmp_path, monkeypatch, capsys):
    """Case 127: without checkpoints the end is the first that saves; no loss has shown the fault."""
    spoiled_run.patch(monkeypatch.setattr, "rare", float("nan"))
    assert main(arguments(tiny_settings(tmp_path / "run", max_train_steps=6))) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "train_encoder: the encoder is not written: the model after the last step holds NaN or infinity "
        f"(text_model.embeddings.token_embedding.weight); {ADVICE}"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["train_log.jsonl"]


def test_a_start_that_is_not_finite_is_refused(tmp_path, capsys):
    """Case 127: what someone else saved."""
    path = save_tiny_clip(tmp_path / "start") / "model.safetensors"
    tensors = load_file(path)
    tensors["logit_scale"] = torch.tensor(float("inf"))
    save_file(tensors, path, metadata={"format": "pt"})
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(path.parent)}
    assert main(arguments(tiny_settings(tmp_path / "run", **settings))) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_encoder: the model {path.parent} holds NaN or infinity (logit_scale); copy it again, or start from "
        "another one."
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # two launches of two processes
@pytest.mark.parametrize("where", ["gradient", "moment"])
def test_two_processes_end_together(tmp_path, where):
    """Case 127: the main process alone saves, and all end, with one sentence and no traceback."""
    folder = tmp_path / "run"
    command = [where, "nan"]
    done = launch(SEVERAL, tiny_settings(folder, **SETTINGS), 29690, module="tests.spoiled_run", before=command)
    assert done.returncode != 0
    assert done.stderr.count("train_encoder: checkpoint-6 is not saved: the run holds NaN or infinity (") == 1
    assert "train_encoder/" not in done.stderr  # a frame of the trainer's own
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-3"]
    assert not (folder / "config.json").exists()
