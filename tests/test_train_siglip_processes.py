"""SigLIP in two processes: one loss and one gradient with one process, in shards too."""

import json
import subprocess

import pytest
import torch
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

from tests.gradient_step import first_step, largest_difference
from tests.test_train_processes import ROOT, SEVERAL, check_shards, command_of, environment_of, launch, resume_shards
from tests.tiny_siglip import make_pictures, make_siglip
from tests.train_tiny import tiny_settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("fresh_accelerator")]


@pytest.fixture
def settings(tmp_path):
    start = make_siglip(tmp_path / "start", "siglip2")
    pictures = make_pictures(tmp_path / "pictures", count=16)
    return {"recipe": "debias", "pretrained_model_name_or_path": str(start), "train_data": pictures}


def test_one_process_two_and_chunks_have_one_loss_and_one_gradient(settings, tmp_path, record_property):
    """1 x 8, 2 x 4, chunks of 2 in 2 processes, chunks of 4 in one; gathered features carry their gradients."""
    frozen = settings | {"freeze_image_tower": True, "image_features_dir": str(tmp_path / "kept")}
    several = {
        "2 x 4": settings | {"train_batch_size": 4},
        "2 x 2 x 2": settings | {"train_batch_size": 2, "contrast_chunks": 2},
        "frozen 2 x 4": frozen | {"train_batch_size": 4},
    }
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({n: tiny_settings(tmp_path / n.replace(" ", ""), **s) for n, s in several.items()}))
    command = [*command_of(SEVERAL, 29640, "tests.gradient_step"), str(path)]
    options = {"cwd": ROOT, "env": environment_of(29640), "capture_output": True, "text": True, "timeout": 500}
    done = subprocess.run(command, **options, check=False)
    assert done.returncode == 0, done.stderr
    found = torch.load(f"{path}.pt", weights_only=True)
    assert {step["processes"] for step in found.values()} == {2}
    whole = first_step(tiny_settings(tmp_path / "one", **settings, train_batch_size=8))
    assert whole["gradients"]["clip.logit_bias"].abs().item() > 1e-3
    chunks = {"train_batch_size": 4, "contrast_chunks": 2}
    found["1 x 4 x 2"] = first_step(tiny_settings(tmp_path / "chunks", **settings, **chunks))
    frozen_whole = first_step(tiny_settings(tmp_path / "frozen", **frozen, train_batch_size=8))
    for name, step in found.items():
        difference = largest_difference(frozen_whole if name.startswith("frozen") else whole, step)
        record_property(name, difference)
        assert difference < 1e-5


def test_shards_train_what_whole_weights_do_and_go_on_from_a_checkpoint(settings, tmp_path):
    settings |= {"adam_epsilon": 1e-2, "train_batch_size": 4, "max_train_steps": 4, "learning_rate": 0.1}
    settings |= {"checkpointing_steps": 2, "checkpoints_total_limit": 5, "adam_weight_decay": 0.1}
    runs = {"whole": ("train_encoder", {}), "shards": ("tests.sharded_run", {})}
    runs["chunks"] = ("tests.sharded_run", {"train_batch_size": 2, "contrast_chunks": 2})
    for port, (name, (module, changes)) in enumerate(runs.items(), start=29641):
        done = launch(SEVERAL, tiny_settings(tmp_path / name, **settings | changes), port, module=module)
        assert done.returncode == 0, done.stderr
    AcceleratorState._reset_state(reset_partial_state=True)
    start, one, *others = (load_file(tmp_path / name / "model.safetensors") for name in ("start", *runs))
    assert (one["logit_bias"] - start["logit_bias"]).abs().item() > 1e-3
    assert all(other["logit_scale"].shape == other["logit_bias"].shape == (1,) for other in others)
    check_shards(start, one, others)
    resume_shards(tmp_path, settings, 29644)
