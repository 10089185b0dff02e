"""The same batch in other shapes: chunks, processes, recomputed, compiled, frozen; one loss, one gradient."""

import json
import resource
import shutil
import signal

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from debias_sd.datasets.pictures import PictureFault
from tests.gradient_step import first_step, largest_difference
from tests.train_tiny import arguments, tiny_config, tiny_settings, train_tiny
from train_encoder.__main__ import main
from train_encoder.data.features import ImageFeatures
from train_encoder.prepare import prepare
from train_encoder.train import make_loader

pytestmark = pytest.mark.usefixtures("fresh_accelerator")


@pytest.mark.parametrize(
    "settings",
    [
        {"recipe": "debias", "stay_close_weight": 0.5, "late_sentences_weight": 0.5},
        {"recipe": "long-clip", "text_pass": "grouped"},
        {"recipe": "short-only"},
    ],
    ids=lambda settings: settings["recipe"],
)
def test_chunks_have_the_gradient_of_the_whole_batch(base, tmp_path, settings):
    settings = {"pretrained_model_name_or_path": str(base)} | settings
    whole = first_step(tiny_settings(tmp_path, **settings, train_batch_size=8))
    for size in (4, 2):
        chunks = {"train_batch_size": size, "contrast_chunks": 8 // size}
        cached = first_step(tiny_settings(tmp_path, **settings, **chunks))
        assert largest_difference(whole, cached) < 1e-5
    # The chunks' own batches would be something else: fewer pairs to tell apart.
    alone = first_step(tiny_settings(tmp_path, **settings, train_batch_size=4))
    assert abs(alone["loss"] - whole["loss"]) > 0.01


def test_chunks_carry_the_supervision_of_their_pairs(tmp_path):
    """The mean over chunks of means over pairs, as over processes: not quite that of the whole, because mentions differ
    in number."""
    settings = tiny_settings(tmp_path, grounding_weight=1.0)
    whole = first_step(settings | {"train_batch_size": 8})
    cached = first_step(settings | {"train_batch_size": 4, "contrast_chunks": 2})
    assert cached["loss"] == pytest.approx(whole["loss"], rel=0.02)
    assert "heads.sentence.weight" in cached["gradients"]


def test_a_chunked_run_trains_the_same_weights(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "adam_epsilon": 1e-2}
    whole = train_tiny(tmp_path / "whole", **settings, train_batch_size=8)
    chunks = train_tiny(tmp_path / "chunks", **settings, train_batch_size=4, contrast_chunks=2)
    left, right = (load_file(folder / "model.safetensors") for folder in (whole, chunks))
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=0)


def test_packed_and_grouped_runs_train_the_same_weights(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "adam_epsilon": 1e-2}
    runs = [train_tiny(tmp_path / name, **settings, text_pass=name) for name in ("packed", "grouped")]
    left, right = (load_file(folder / "model.safetensors") for folder in runs)
    for name in left:
        torch.testing.assert_close(left[name], right[name], atol=1e-6, rtol=0)


def test_recomputed_layers_have_the_same_gradient(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base)}
    whole = first_step(tiny_settings(tmp_path, **settings))
    recomputed = first_step(tiny_settings(tmp_path, **settings, gradient_checkpointing=True))
    assert largest_difference(whole, recomputed) < 1e-6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="torch.compile needs a C++ compiler on a CPU")
def test_compiled_layers_have_the_same_gradient(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base)}
    whole = first_step(tiny_settings(tmp_path, **settings))
    compiled = first_step(tiny_settings(tmp_path, **settings, torch_compile=True))
    assert largest_difference(whole, compiled) < 1e-5


def test_a_frozen_image_tower_stays_and_the_text_tower_gets_its_gradient(base, tmp_path):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base)}
    whole = first_step(tiny_settings(tmp_path, **settings))
    frozen = first_step(tiny_settings(tmp_path, **settings, freeze_image_tower=True))
    assert not any("vision" in name or "visual" in name for name in frozen["gradients"])
    for name, gradient in frozen["gradients"].items():
        torch.testing.assert_close(gradient, whole["gradients"][name], atol=1e-5, rtol=1e-4)
    folder = train_tiny(tmp_path / "run", **settings, freeze_image_tower=True)
    start, end = load_file(base / "model.safetensors"), load_file(folder / "model.safetensors")
    for name in start:
        if "vision" in name or "visual" in name:
            assert torch.equal(start[name], end[name])
    assert not torch.equal(start["text_projection.weight"], end["text_projection.weight"])


def test_kept_features_are_found_again_and_others_are_not(base, tmp_path, capsys):
    kept = {"image_features_dir": str(tmp_path / "kept"), "freeze_image_tower": True}
    settings = {"pretrained_model_name_or_path": str(base)} | kept
    runs = [("debias", 0, "computed"), ("long-clip", 0, "kept"), ("debias", 1, "computed")]
    for recipe, seed, wanted in runs:
        train_tiny(tmp_path / f"{recipe}{seed}", **settings, recipe=recipe, seed=seed, max_train_steps=2)
        said = capsys.readouterr().out
        assert ("pictures computed" in said) == (wanted == "computed")
    assert len(list((tmp_path / "kept").glob("*.npy"))) == 2
    assert not list((tmp_path / "kept").glob(".*"))


def test_frozen_runs_of_records_replace_the_same_broken_pictures(base, tmp_path):
    lines = []
    for number in range(12):
        Image.new("RGB", (48, 48), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": f"a red star. a box {'. a disc' * number}."}))
    (tmp_path / "3.png").write_bytes(b"no picture")
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    settings = {"pretrained_model_name_or_path": str(base), "train_data": str(tmp_path / "metadata.jsonl")}
    settings |= {"recipe": "debias", "train_batch_size": 6, "max_train_steps": 2}
    batches = []
    for freeze in (False, True):
        run = prepare(tiny_config(tmp_path / f"run{freeze}", **settings, freeze_image_tower=freeze))
        batches.append(list(make_loader(run)))
    for plain, frozen in zip(*batches, strict=True):
        assert plain["keys"] == frozen["keys"]
        assert plain["faults"] == frozen["faults"]
        assert torch.equal(plain["input_ids"], frozen["input_ids"])
        wanted = run.towers.image_features(plain["pixel_values"])
        torch.testing.assert_close(frozen["image_features"], wanted, atol=1e-6, rtol=1e-5)
    assert sum(len(batch["faults"]) for batch in batches[0]) >= 1


def test_features_of_replaced_pictures_are_computed_again(base, tmp_path, capsys):
    lines = []
    for number in range(8):
        Image.new("RGB", (48, 48), (20 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": f"a red star. a box {'. a disc' * number}."}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    settings = {"pretrained_model_name_or_path": str(base), "train_data": str(tmp_path), "recipe": "debias"}
    settings |= {"image_features_dir": str(tmp_path / "kept"), "freeze_image_tower": True, "max_train_steps": 2}
    said = []
    for run in range(3):
        if run == 2:
            Image.new("RGB", (48, 48), (0, 99, 0)).save(tmp_path / "3.png")
        train_tiny(tmp_path / f"run{run}", **settings)
        said.append("pictures computed" in capsys.readouterr().out)
    assert said == [True, False, True]
    one, two = (np.load(path) for path in sorted((tmp_path / "kept").glob("*.npy")))
    assert (one != two).any(axis=1).tolist() == [number == 3 for number in range(8)]


def test_features_end_whole_or_not_at_all(base, tmp_path, capsys):
    """A disk that fills up while they are written is one sentence, and leaves no part of them."""
    settings = {"pretrained_model_name_or_path": str(base), "recipe": "debias", "freeze_image_tower": True}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, before[1]))
        code = main(arguments(tiny_settings(tmp_path / "run", **settings)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == (
        "train_encoder: a file would be larger than this system allows (File too large: "
        f"{tmp_path / 'run'}); no checkpoint is there: make room and start it again."
    )
    assert list((tmp_path / "run" / "image-features").iterdir()) == []


def test_kept_features_are_mapped_by_each_worker_and_name_their_faults(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, np.arange(6, dtype=np.float32).reshape(3, 2))
    path.with_suffix(".json").write_text(json.dumps({"faults": {"1": "not a picture"}}))
    features = ImageFeatures(path)
    assert features[2].tolist() == [4.0, 5.0]
    assert features.__getstate__()["_rows"] is None
    with pytest.raises(PictureFault) as caught:
        features[1]
    assert caught.value.kind == "not a picture"


def test_features_that_cannot_be_written_are_one_sentence(base, tmp_path):
    settings = {"pretrained_model_name_or_path": str(base), "freeze_image_tower": True}
    with pytest.raises(ValueError, match="^image features cannot be written to /proc/none"):
        prepare(tiny_config(tmp_path, **settings, recipe="debias", image_features_dir="/proc/none"))
