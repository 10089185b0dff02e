"""The scripts of examples/, run as a user runs them, at tiny size."""

import json
from functools import partialmethod
from pathlib import Path

import pytest
from PIL import Image
from run_script import run_script
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_sdxl
from tiny_sets import make_folder
from tiny_world import save_tiny_clip

EXAMPLES = Path(__file__).parent.parent / "examples"


def few_steps(scheduler, count, *arguments, of, **options):
    return of(scheduler, min(count, 2), *arguments, **options)


@pytest.mark.parametrize(
    ("name", "base", "said"),
    [
        ("swap_encoder.py", tiny_sd_pipeline, ""),
        ("any_length.py", tiny_sd_pipeline, "248"),
        ("sdxl.py", tiny_sdxl, "text_encoder_2"),
    ],
)
def test_an_example_draws_a_picture(tmp_path, monkeypatch, capsys, name, base, said):
    pipe = base()
    pipe.save_pretrained(tmp_path / "base")
    scheduler = type(pipe.scheduler)  # a random UNet's 25 steps show no more than 2
    monkeypatch.setattr(scheduler, "set_timesteps", partialmethod(few_steps, of=scheduler.set_timesteps))
    tiny_encoder().stretch().save(tmp_path / "encoder")
    arguments = (tmp_path / "base", tmp_path / "encoder", 3 * LONG_PROMPT, tmp_path / "out.png")
    assert run_script(EXAMPLES / name, *arguments) == 0
    with Image.open(tmp_path / "out.png") as image:
        assert min(image.size) >= 8
    assert said in capsys.readouterr().out


def test_an_encoder_trains_on_a_folder_of_pictures_and_is_measured(tmp_path, fresh_accelerator):
    clip, pictures = save_tiny_clip(tmp_path / "clip"), make_folder(tmp_path / "pictures")
    small = ("--max_train_steps", 2, "--lr_warmup_steps", 1, "--train_batch_size", 4, "--components", 2)
    assert run_script(EXAMPLES / "train_on_pictures.py", clip, pictures, tmp_path / "trained", *small) == 0
    report = tmp_path / "report.json"
    assert run_script(EXAMPLES / "measure.py", clip, tmp_path / "trained", pictures, report) == 0
    assert {"before", "after"} <= set(json.dumps(json.loads(report.read_text())).replace('"', " ").split())


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.iterdir() if path.suffix == ".py"} == {
        "swap_encoder.py", "any_length.py", "sdxl.py", "train_on_pictures.py", "measure.py",
    }  # fmt: skip
