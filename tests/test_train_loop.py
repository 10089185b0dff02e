"""The loop: what moves and what stays, resume, the folder it writes, and how it stops."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import CLIPModel, CLIPTextModel, CLIPTokenizer

from debias_sd.encoder import TextEncoder
from tests.train_tiny import arguments, tiny_config, tiny_settings, train_tiny
from train_encoder.__main__ import main
from train_encoder.prepare import prepare
from train_encoder.run_folder import list_checkpoints
from train_encoder.step import train_step
from train_encoder.train import make_loader

pytestmark = pytest.mark.usefixtures("fresh_accelerator")


def weights(folder):
    return load_file(folder / "model.safetensors")


def log_of(folder):
    return [json.loads(line) for line in (folder / "train_log.jsonl").read_text().splitlines()]


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize("recipe", ["long-clip", "debias"])
def test_first_20_positions_stay_bit_for_bit_and_all_else_moves(base, tmp_path, recipe):
    folder = train_tiny(tmp_path / "run", recipe=recipe, pretrained_model_name_or_path=str(base), adam_weight_decay=0.1)
    start = CLIPModel.from_pretrained(base).state_dict()
    end = CLIPModel.from_pretrained(folder).state_dict()
    name = "text_model.embeddings.position_embedding.weight"
    assert end[name].shape[0] == 248
    assert torch.equal(end[name][:20], start[name][:20])
    reached = 100  # every batch has captions of at least this many tokens
    from debias_sd.positions import stretch_positions

    assert (end[name][20:reached] != stretch_positions(start[name])[20:reached]).any(dim=1).all()
    assert all(not torch.equal(end[key], start[key]) for key in start if key != name)


def test_resumed_run_equals_the_uninterrupted_one(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "max_train_steps": 6}
    settings |= {"checkpointing_steps": 3, "checkpoints_total_limit": 5, "stay_close_weight": 0.5}
    whole = train_tiny(tmp_path / "whole", **settings)
    first = whole / "checkpoint-3"
    assert [p.name for p in list_checkpoints(whole)] == ["checkpoint-3", "checkpoint-6"]
    resumed = tmp_path / "resumed"
    resumed.mkdir()
    first.rename(resumed / "checkpoint-3")
    (resumed / "train_log.jsonl").write_text((whole / "train_log.jsonl").read_text())  # lines past 3 are made again
    train_tiny(resumed, **settings, resume_from_checkpoint="latest")
    assert same(weights(whole), weights(resumed))
    rows = [[{k: v for k, v in row.items() if k != "seconds"} for row in log_of(f)] for f in (whole, resumed)]
    assert rows[0] == rows[1]
    assert [row["step"] for row in rows[1]] == [1, 2, 3, 4, 5, 6]


def test_data_workers_change_nothing(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base)}
    plain = train_tiny(tmp_path / "plain", **settings)
    assert same(weights(plain), weights(train_tiny(tmp_path / "workers", **settings, dataloader_num_workers=1)))


def test_a_run_that_has_no_checkpoint_starts_anew_and_its_log_has_the_schedules_rates(tmp_path, capsys):
    wishes = {"resume_from_checkpoint": "latest", "report_to": "tensorboard"}
    folder = train_tiny(tmp_path / "run", max_train_steps=4, lr_warmup_steps=2, learning_rate=1.0e-4, **wishes)
    assert "no checkpoint in" in capsys.readouterr().out
    assert [row["lr"] for row in log_of(folder)] == pytest.approx([5e-5, 1e-4, 1e-4, 5e-5])
    assert list((folder / "tensorboard").glob("events*"))


def test_resume_refuses_another_run_and_a_damaged_file(tmp_path, capsys):
    settings = {"max_train_steps": 2, "checkpointing_steps": 1}
    folder = train_tiny(tmp_path / "run", **settings)
    (folder / "config.json").unlink()  # as if it had been stopped before its end
    assert [p.name for p in list_checkpoints(folder)] == ["checkpoint-2"]
    again = {"resume_from_checkpoint": "latest"} | settings
    assert main(arguments(tiny_settings(folder, **again, seed=9))) == 2
    assert "belongs to a run with another seed" in capsys.readouterr().err
    state = folder / "checkpoint-2" / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    assert main(arguments(tiny_settings(folder, **again))) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(arguments(tiny_settings(folder, **settings, resume_from_checkpoint="elsewhere"))) == 2
    assert "checkpoint elsewhere does not exist" in capsys.readouterr().err


def test_folder_is_an_encoder_for_stock_parts_and_tells_how_it_was_made(base, tmp_path):
    folder = train_tiny(tmp_path / "run", recipe="debias", pretrained_model_name_or_path=str(base))
    encoder = TextEncoder.load(folder)
    assert (encoder.positions, encoder.tokenizer.model_max_length) == (248, 248)
    assert "red" in encoder.known_words
    assert encoder.unknown_words("a red zebra") == ("zebra",)
    stock = CLIPTokenizer.from_pretrained(folder)
    assert stock("red <|endoftext|> star").input_ids.count(stock.eos_token_id) == 1  # a typed one is words
    model, report = CLIPTextModel.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert model.config.eos_token_id == encoder.tokenizer.eos_token_id
    story = json.loads((folder / "provenance.json").read_text())
    assert story["command"][0] == "train_encoder"
    assert (story["config"]["short_weight"], story["final"]["step"]) == (0.1, 3)
    assert len(story["sha256"]["model.safetensors"]) == 64
    assert not list(folder.glob(".*"))
    assert [row["step"] for row in log_of(folder)] == [1, 2, 3]


def test_grounding_trains_and_stays_out_of_the_folder(tmp_path):
    folder = train_tiny(tmp_path / "run", grounding_weight=1.0, mixed_precision="bf16", max_grad_norm=1.0)
    rows = log_of(folder)
    assert rows[-1]["grounding"] < rows[0]["grounding"]
    assert not any("head" in name for name in weights(folder))
    assert {tensor.dtype for tensor in weights(folder).values()} == {torch.float32}


def test_temperature_trains_and_is_clamped(tmp_path):
    run = prepare(tiny_config(tmp_path, learning_rate=0.5))
    batches = iter(make_loader(run))
    with torch.no_grad():
        run.towers.clip.logit_scale.fill_(4.6)
    scales = [train_step(run, next(batches))["scale"] for _ in range(2)]
    assert max(scales) <= 100.001
    assert run.towers.clip.logit_scale.item() != pytest.approx(4.6, abs=1e-6)
    with torch.no_grad():
        run.towers.clip.logit_scale.fill_(10.0)
    assert train_step(run, next(batches))["scale"] <= 100.001


def test_a_loss_that_is_not_finite_stops_with_its_step(tmp_path):
    run = prepare(tiny_config(tmp_path))
    batches = iter(make_loader(run))
    train_step(run, next(batches))
    with torch.no_grad():
        run.towers.clip.visual_projection.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="the loss of step 2 is nan"):
        train_step(run, next(batches))


def test_user_faults_end_with_code_2_and_one_line(tmp_path, capsys):
    assert main(["--sed", "1"]) == 2
    assert (
        capsys.readouterr().err
        == "train_encoder: unknown option '--sed'; the nearest is '--seed' (--help lists all).\n"
    )
    assert main(arguments(tiny_settings(tmp_path, expect_processes=2))) == 2
    assert "has 1 process(es), expected 2; start several" in capsys.readouterr().err
