"""A saved pipeline of every family, read by diffusers alone in a process that cannot import this project."""

import json
import subprocess
import sys

import pytest
import torch
from tiny import LONG_PROMPT, tiny_encoder
from tiny_pipelines import FAMILIES, SIDE, WIDTH_SD2, draw_family

from debias_sd.pipelines.load import with_text_encoder

READ = """
import json, sys
sys.modules["debias_sd"] = None  # any import of it fails
import torch
from diffusers import DiffusionPipeline

folder, names, side, prompt = sys.argv[1], sys.argv[2].split(), int(sys.argv[3]), sys.argv[4]
told = {}
for name in names:
    pipe = DiffusionPipeline.from_pretrained(f"{folder}/{name}")
    pipe.set_progress_bar_config(disable=True)
    inputs = torch.load(f"{folder}/{name}.pt", weights_only=True)
    size = {"image": torch.full((1, 3, side, side), 0.5), "strength": 1.0} if name == "refiner" else {
        "height": side, "width": side}
    picture = pipe(prompt=prompt, num_inference_steps=2, generator=torch.Generator().manual_seed(0),
                   output_type="pt", **size).images
    clips = [key for key in pipe.components if key.startswith("text_encoder") and
             type(getattr(pipe, key)).__name__.startswith("CLIP")]
    told[name] = {
        "class": type(pipe).__name__,
        "positions": [getattr(pipe, key).config.max_position_embeddings for key in clips],
        "reads": [getattr(pipe, key.replace("text_encoder", "tokenizer")).model_max_length for key in clips],
        "origins": [getattr(pipe, key).config.debias_sd_origin for key in clips],
        "difference": (picture - inputs).abs().max().item(),
    }
print(json.dumps(told))
"""


@pytest.mark.parametrize("families", [["sd", "sdxl"], pytest.param([*FAMILIES], marks=pytest.mark.slow)], ids=len)
def test_a_family_reads_248_tokens_without_this_project(tmp_path, families):
    kinds = {}
    for name in families:
        make = FAMILIES[name]
        encoder = {"sd2": tiny_encoder(width=WIDTH_SD2), "refiner": None}.get(name, tiny_encoder())
        pipe = with_text_encoder(make(), encoder)
        pipe.save_pretrained(tmp_path / name)
        size = {"image": torch.full((1, 3, SIDE, SIDE), 0.5)} if name == "refiner" else {}
        torch.save(draw_family(pipe, prompt=LONG_PROMPT, **size), tmp_path / f"{name}.pt")
        kinds[name] = type(pipe).__name__
    arguments = [str(tmp_path), " ".join(families), str(SIDE), LONG_PROMPT]
    done = subprocess.run([sys.executable, "-c", READ, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert {name: row["class"] for name, row in told.items()} == kinds
    both = {"sdxl": ["given", "stretched"], "sd3": ["given", "stretched"], "refiner": ["stretched"]}
    for name, row in told.items():
        assert row["origins"] == both.get(name, ["given"])
        assert row["positions"] == row["reads"] == [248] * len(row["origins"])
        assert row["difference"] < 1e-4
