"""`train_unet`: what is saved is finite and whole, another run is not gone on with, nothing finished is overwritten."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_world import save_tiny_clip
from unet_tiny import SMALL

from debias_sd.shapes.caption import Caption
from train_unet import run as run_module
from train_unet import train as training
from train_unet.__main__ import main
from train_unet.models import new_vae, save_state
from train_unet.settings import parse_arguments

ADVICE = (
    "what was saved before stays, but the same settings lead here again: start a new run, in another output_dir, with "
    "a lower learning rate."
)


@pytest.fixture(scope="module", autouse=True)
def _no_drawing_on_the_way():
    """What is drawn of held-out scenes takes most of a tiny run's time and decides nothing."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "log_line", lambda *_: None)
        patched.setattr(run_module, "share_drawn", lambda *_, **__: {})
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny_clip(tmp_path_factory.mktemp("encoder") / "base")


def arguments(folder, base, **settings):
    steps = {"vae_train_steps": 2, "decoder_train_steps": 1, "vae_train_batch_size": 2, "max_train_steps": 4}
    values = SMALL | steps | {"widths": list(SMALL["widths"]), "text_encoder": str(base), "output_dir": str(folder)}
    return [part for name, value in (values | settings).items() for part in (f"--{name}", str(value))]


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main(arguments(folder, base)) == 0
    return folder


@pytest.fixture
def with_vae(finished, tmp_path):
    """A run whose VAE is finished and whose UNet is not begun."""
    folder = shutil.copytree(finished, tmp_path / "run")
    shutil.rmtree(folder / "pipeline")
    (folder / "unet-state.pt").unlink()
    return folder


def content_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("where", "value"), [("weight", math.nan), ("moment", math.inf), ("average", math.nan)])
def test_the_last_good_state_stays(base, with_vae, monkeypatch, capsys, where, value):
    """Case 127: step 4 is spoiled, step 2 was saved; no loss has shown it."""
    save = training.save_state

    def spoiled(path, step, parts):
        if step == 4:
            weight = next(parts["model"].parameters())
            tensors = {"weight": weight, "average": next(parts["average"].parameters())}
            tensors["moment"] = parts["optimizer"].state[weight]["exp_avg"]
            with torch.no_grad():
                tensors[where].view(-1)[0] = value
        save(path, step, parts)

    monkeypatch.setattr(training, "save_state", spoiled)
    assert main(arguments(with_vae, base)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    named = {"weight": "model.", "average": "average.", "moment": "optimizer.state.0.exp_avg"}[where]
    assert error.startswith(f"train_unet: unet-state.pt of step 4 is not saved: the run holds NaN or infinity ({named}")
    assert error.endswith(f"); {ADVICE}")
    assert torch.load(with_vae / "unet-state.pt", weights_only=True)["step"] == 2
    assert not (with_vae / "pipeline").exists()


@pytest.mark.parametrize("value", [math.nan, 1e6])
def test_a_pipeline_that_is_not_finite_is_not_written(base, with_vae, monkeypatch, capsys, value):
    """Case 127: the folder is in float16, where a weight of 1e6 is infinite."""
    train = run_module.train_unet

    def spoiled(*parts):
        unet, loss = train(*parts)
        with torch.no_grad():
            unet.conv_out.weight.view(-1)[0] = value
        return unet, loss

    monkeypatch.setattr(run_module, "train_unet", spoiled)
    assert main(arguments(with_vae, base)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_unet: pipeline is not written: its unet holds NaN or infinity (conv_out.weight); {ADVICE}"
    )
    assert not (with_vae / "pipeline").exists()


def test_a_vae_that_is_not_finite_is_not_written(base, tmp_path, monkeypatch, capsys):
    """Case 127: for instance by a channel of latents without spread, by which the VAE is divided."""

    def spoiled(folder, *, seed, **_):
        vae = new_vae(seed)
        with torch.no_grad():
            vae.quant_conv.weight.div_(0.0)
        return vae

    monkeypatch.setattr(run_module, "train_vae", spoiled)
    assert main([*arguments(tmp_path / "run", base), "--vae_only"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_unet: vae-first is not written: the VAE holds NaN or infinity (quant_conv.weight); {ADVICE}"
    )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["settings.json"]


def test_a_finished_run_is_left_as_it_is(finished, base, capsys):
    """Case 129: the same command says so, and ends well; so does the VAE's."""
    for options, name in (([], "pipeline"), (["--vae_only"], "vae")):
        before = content_of(finished)
        assert main([*arguments(finished, base), *options]) == 0
        assert capsys.readouterr().out == (
            f"{finished / name} is finished; everything is left as it is (--overwrite_output_dir deletes it and trains "
            "anew)\n"
        )
        assert content_of(finished) == before


def test_a_longer_run_is_another_run(finished, base, capsys):
    """Case 129: the rate and the curriculum go over all steps."""
    assert main(arguments(finished, base, max_train_steps=8)) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_unet: {finished} holds a run with another max_train_steps (4, now 8); its learning rate falls to 0 "
        "over exactly these steps, so no other length has its weights; give another output_dir, or what that run had, "
        "or delete it with --overwrite_output_dir."
    )


def test_overwriting_deletes_what_the_run_wrote(base, with_vae):
    """Case 129: `--overwrite_output_dir`, the bare flag; what others left there stays."""
    (with_vae / "notes.old").write_text("mine")
    before = content_of(with_vae)
    assert main([*arguments(with_vae, base, seed=3), "--vae_only", "--overwrite_output_dir"]) == 0
    after = content_of(with_vae)
    weights = Path("vae/diffusion_pytorch_model.safetensors")
    assert after[weights] != before[weights]
    assert sorted(path.name for path in with_vae.iterdir()) == ["notes.old", "settings.json", "vae", "vae-first"]
    assert (with_vae / "notes.old").read_text() == "mine"


def test_a_model_of_other_origin_is_not_taken_for_its_own(base, tmp_path, capsys):
    """Case 129: a Stable Diffusion folder as output_dir has a `vae` too."""
    (tmp_path / "sd" / "vae").mkdir(parents=True)
    for options in ([], ["--overwrite_output_dir"]):
        assert main([*arguments(tmp_path / "sd", base), *options]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert (
            error
            == f"train_unet: {tmp_path / 'sd'} has a model that train_unet did not write; give another output_dir."
        )
    assert [path.name for path in (tmp_path / "sd").iterdir()] == ["vae"]


def test_what_the_world_draws_and_the_versions_are_noted(base, with_vae, monkeypatch, capsys):
    """Case 128: another renderer or writer of captions is another run; another package is a warning."""
    noted = json.loads((with_vae / "settings.json").read_text())
    noted["versions"][0]["versions"]["numpy"] = "1.0"
    (with_vae / "settings.json").write_text(json.dumps(noted))
    assert main(arguments(with_vae, base)) == 0
    assert "warning: going on with another numpy (1.0, now " in capsys.readouterr().out
    resumed = json.loads((with_vae / "pipeline" / "provenance.json").read_text())["resumed"]
    assert [one["versions"]["numpy"] for one in resumed] == ["1.0", np.__version__]
    for name in ("pictures", "caption_of"):
        with monkeypatch.context() as patched:
            other = {"pictures": lambda *_, **__: torch.zeros(1), "caption_of": lambda *_: Caption(("A dog.",), ((),))}
            patched.setattr(run_module, name, other[name])
            assert main(arguments(with_vae, base)) == 2
        named = {"pictures": "pictures", "caption_of": "captions"}[name]
        assert f"holds a run with another {named}; give another output_dir" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence_and_leaves_the_state(tmp_path, base, monkeypatch, capsys):
    """Case 134: a state, and a part of the pipeline."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        save_state(disk / "unet-state.pt", 2, {"model": torch.nn.Linear(10, 10)})
        with pytest.raises(OSError, match="No space left on device"):
            save_state(disk / "unet-state.pt", 4, {"model": torch.nn.Linear(300, 300)})
        assert torch.load(disk / "unet-state.pt", weights_only=True)["step"] == 2
        assert main([*arguments(disk / "run", base), "--vae_only"]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("train_unet: the disk is full (No space left on device: ")
        assert error.endswith("); what was saved before stays: make room and give the same command again.")
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize(
    "options", [["16", "32"], ["[16, 32]"], ["16", "--widths", "32"], ["16", "--seed", "1", "--widths=32"]]
)
def test_a_list_is_given_in_every_way_that_people_know(options):
    """Case 130: `A B`, `[A, B]` and the option given twice."""
    assert parse_arguments(["--text_encoder", "e", "--output_dir", "o", "--widths", *options]).widths == (16, 32)
