"""A whole run of `train_unet` at tiny size: resume, the pipeline folder, and what its command line refuses."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from diffusers import StableDiffusionPipeline
from tiny_world import save_tiny_clip
from unet_tiny import SMALL, tiny_unet_config

from debias_sd.encoder import TextEncoder
from train_unet import train as training
from train_unet.__main__ import main
from train_unet.models import new_unet, new_vae
from train_unet.run import check_same_run
from train_unet.settings import UnetConfig, parse_arguments
from train_unet.train import Conditioner, make_pool, train_unet

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _few_sampling_steps(monkeypatch):
    """Pictures of an untrained UNet are noise after any number of steps."""
    monkeypatch.setattr("train_unet.train.STEPS", 2)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A random base encoder with the world's tokenizer and 77 positions."""
    return save_tiny_clip(tmp_path_factory.mktemp("encoder") / "base")


def train(base, folder):
    """Train the UNet in `folder` from the tiny encoder and a random VAE; return it and the loss."""
    folder.mkdir(exist_ok=True)
    encoder = TextEncoder.load(base)
    unet = new_unet(0, latent_channels=16, text_width=encoder.width, widths=SMALL["widths"])
    conditioner = Conditioner(encoder.model.float(), encoder.tokenizer)
    return train_unet(tiny_unet_config(folder), conditioner, new_vae(0).eval(), unet, folder)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_run_ends_bit_for_bit_where_the_uninterrupted_one_does(base, tmp_path, monkeypatch):
    whole, loss = train(base, tmp_path / "whole")
    draw = training.make_batch

    def killed(step, pool, config):
        if step == 3:
            raise KeyboardInterrupt
        return draw(step, pool, config)

    with monkeypatch.context() as patched:
        patched.setattr(training, "make_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            train(base, tmp_path / "cut")  # the state is that of step 2: one step is lost
    resumed, _ = train(base, tmp_path / "cut")
    left, right = whole.state_dict(), resumed.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)
    start = new_unet(0, latent_channels=16, text_width=32, widths=SMALL["widths"]).state_dict()
    assert any(not torch.equal(left[name], start[name]) for name in left)
    assert 0 < loss < 10
    lines = [json.loads(line) for line in (tmp_path / "cut" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 4]
    assert all(set(line["drawn"]) == {"1", "3", "5", "7", "9"} for line in lines)
    _, again = train(base, tmp_path / "cut")
    assert again is None  # nothing was left to train: no loss is made up


def test_the_pool_holds_each_scene_with_its_captions_and_is_made_once(base, tmp_path):
    encoder, vae, config = TextEncoder.load(base), new_vae(0).eval(), tiny_unet_config(tmp_path, scenes_per_count=2)
    conditioner = Conditioner(encoder.model.float(), encoder.tokenizer)
    pool = make_pool(config, vae, conditioner, tmp_path / "pool.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in pool.items()} == {
        "latents": (9, 2, 16, 6, 6),
        "states": (9, 2, 2, 77, 32),
        "empty": (77, 32),
    }
    assert {tensor.dtype for tensor in pool.values()} == {torch.float16}
    assert torch.equal(pool["empty"], conditioner([""])[0].half())
    made = (tmp_path / "pool.safetensors").stat().st_mtime_ns
    again = make_pool(config, vae, conditioner, tmp_path / "pool.safetensors")
    assert (tmp_path / "pool.safetensors").stat().st_mtime_ns == made
    assert all(torch.equal(pool[name], again[name]) for name in pool)


def arguments(folder, base, **settings):
    steps = {"vae_train_steps": 2, "decoder_train_steps": 1, "vae_train_batch_size": 2, "max_train_steps": 1}
    values = SMALL | steps | {"widths": list(SMALL["widths"]), "text_encoder": str(base), "output_dir": str(folder)}
    return [part for name, value in (values | settings).items() for part in (f"--{name}", str(value))]


def test_a_run_writes_a_stock_pipeline_folder_that_says_where_it_comes_from(base, tmp_path, capsys):
    command = arguments(tmp_path / "run", base)
    assert main(command) == 0
    folder = tmp_path / "run" / "pipeline"
    assert capsys.readouterr().out == f"written to {folder}\n"
    pipe = StableDiffusionPipeline.from_pretrained(folder, dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    assert pipe("a small red star", num_inference_steps=1).images[0].size == (48, 48)
    facts = json.loads((folder / "provenance.json").read_text())
    assert facts["command"] == " ".join(["python", "-m", "train_unet", *command])
    assert facts["config"]["max_train_steps"] == 1
    files = {str(path.relative_to(folder)) for path in folder.rglob("*.safetensors")}
    assert files == facts["sha256"].keys()
    assert all(hashlib.sha256((folder / name).read_bytes()).hexdigest() == facts["sha256"][name] for name in files)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"seed": 1}, "holds a run with another seed (0, now 1); give another output_dir, or what"),
        (
            {"vae_train_steps": 3},
            "holds a run with another vae_train_steps (2, now 3); its learning rate falls to 0 over exactly",
        ),
        (
            {"max_train_steps": 2},
            "holds a run with another max_train_steps (1, now 2); its learning rate falls to 0 over exactly",
        ),
    ],
)
def test_a_folder_of_another_run_is_not_gone_on_with(changed, sentence, base, tmp_path, capsys):
    folder = tmp_path / "run"
    settings = UnetConfig("e", str(folder), **{"max_train_steps": 1, "vae_train_steps": 2, "vae_train_batch_size": 2})
    check_same_run(folder / "settings.json", settings.vae_settings() | {"max_train_steps": 1})
    before = (folder / "settings.json").read_text()
    assert main(arguments(folder, base, **{"decoder_train_steps": 600, "vae_learning_rate": 2e-3} | changed)) == 2
    assert f"train_unet: {folder} {sentence}" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["settings.json"]
    assert (folder / "settings.json").read_text() == before


def test_a_folder_of_the_same_run_is_gone_on_with_by_the_same_encoder_only(base, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(training, "log_line", lambda *_: None)  # draws, which decides nothing here
    monkeypatch.setattr("train_unet.run.share_drawn", lambda *_, **__: {})
    command = arguments(tmp_path / "run", base)
    assert main([*command, "--vae_only", "true"]) == 0
    noted = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert noted["vae_train_steps"] == 2
    assert "max_train_steps" not in noted
    other = save_tiny_clip(tmp_path / "other", seed=9)
    assert main(command) == 0
    assert main(arguments(tmp_path / "run", other)) == 2
    assert "holds a run with another text_encoder" in capsys.readouterr().err
    assert main(command) == 0


def test_an_encoder_that_is_not_the_base_is_refused(tmp_path, capsys):
    long = save_tiny_clip(tmp_path / "long", window=248)
    assert main(arguments(tmp_path / "run", long)) == 2
    error = capsys.readouterr().err
    assert f"train_unet: the UNet is conditioned on the base encoder with 77 positions, found 248 in {long};" in error
    assert main(arguments(tmp_path / "run", tmp_path / "nowhere")) == 2
    assert not (tmp_path / "run").exists()


BOTH = ["--text_encoder", "e", "--output_dir", "o"]
REFUSED = {
    "unknown": ([*BOTH, "--learning_rates", "1"], "unknown option '--learning_rates'; the nearest is '--learn"),
    "no encoder": (["--output_dir", "o"], "missing setting 'text_encoder'; give it in the YAML file or as --text_enc"),
    "no folder": (["--text_encoder", "e"], "missing setting 'output_dir'; give it in the YAML file or as --output_d"),
    "zero": ([*BOTH, "--max_train_steps", "0"], "max_train_steps must be above 0, found 0; change that setting."),
    "no warm-up": ([*BOTH, "--lr_warmup_steps", "0"], "lr_warmup_steps must be above 0, found 0;"),
    "negative": ([*BOTH, "--decoder_train_steps", "-1"], "decoder_train_steps must be at least 0, found -1;"),
    "fraction": ([*BOTH, "--train_batch_size", "1.5"], "train_batch_size must be a whole number, found 1.5;"),
    "text": ([*BOTH, "--learning_rate", "fast"], "learning_rate must be a number, found 'fast';"),
    "nan": ([*BOTH, "--learning_rate", ".nan"], "learning_rate must be a number, found nan;"),
    "bool": ([*BOTH, "--vae_only", "maybe"], "vae_only must be true or false, found 'maybe';"),
    "decay": ([*BOTH, "--ema_decay", "1"], "ema_decay must be below 1, found 1.0;"),
    "one width": ([*BOTH, "--widths", "[64]"], "widths must be two whole numbers such as [64, 112], found [64];"),
    "odd width": ([*BOTH, "--widths", "[60, 64]"], "widths must be two multiples of 16, found [60, 64];"),
    "not yaml": ([*BOTH, "--widths", "[64"], "--widths is '[64', which is not YAML"),
}


@pytest.mark.parametrize(("command", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_run_is_refused_with_one_sentence(command, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    out, error = capsys.readouterr()
    assert error.startswith(f"train_unet: {sentence}")
    assert error.count("\n") == 1
    assert out == ""
    assert not list(tmp_path.iterdir())


def test_the_module_ends_with_exit_code_2(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "train_unet", "--seeds", "0", *BOTH],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == ("train_unet: unknown option '--seeds'; the nearest is '--seed' (--help lists all).\n")


def test_the_command_line_wins_over_the_file_wherever_the_file_stands(tmp_path, monkeypatch):
    path = tmp_path / "run.yaml"
    path.write_text("text_encoder: e\noutput_dir: o\nlearning_rate: 1e-3\nseed: 4\n")
    taken = []
    monkeypatch.setattr("train_unet.run.run", lambda config, command: taken.append(config))
    for command in (["--config", str(path), "--seed", "5"], ["--seed", "5", "--config", str(path)]):
        assert main(command) == 0
    assert taken == [UnetConfig("e", "o", learning_rate=1e-3, seed=5)] * 2


@pytest.mark.parametrize("path", sorted((ROOT / "train_unet" / "configs").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_is_read(path):
    config = parse_arguments(["--config", str(path)])
    written = yaml.safe_load(path.read_text())
    assert {name: getattr(config, name) for name in written} == written | {"widths": tuple(written["widths"])}
