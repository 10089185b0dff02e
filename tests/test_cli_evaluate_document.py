"""What docs/evaluation.md tells a user to type about sets works, in its order; and our folders as clip_benchmark's."""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from run_script import run_script
from tiny import LONG_PROMPT, save_clip_model
from tiny_sets import caption, draw, make_coco, make_docci, make_folder, make_urban1k
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd import cli
from debias_sd.datasets.names import EVALUATION_KINDS
from debias_sd.datasets.records import Faults, ListedRecords, Record
from debias_sd.measure.embedding import Embedder, FeatureCache
from debias_sd.measure.processes import Processes
from debias_sd.measure.reports.retrieval import published_tables
from debias_sd.measure.towers import load_towers
from debias_sd.probes import GROUPS
from debias_sd.report import Report

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_on_sets_run_and_write_what_they_name(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for seed, name in enumerate(("debias-b16", "long-clip-b16")):
        save_clip_model(tmp_path / "runs" / name, length=248, seed=seed)
    make_urban1k(tmp_path / "data" / "Urban1k")
    make_docci(tmp_path / "data" / "docci")
    make_coco(tmp_path / "data" / "coco")
    (tmp_path / "data" / "photos").mkdir()
    make_folder(tmp_path / "data" / "photos")
    rows = [json.dumps({"prompt": caption(number)}) for number in range(4)]
    (tmp_path / "data" / "prompts.jsonl").write_text("\n".join(rows))
    commands = [
        line for line in TEXT.splitlines() if re.match(r"debias-sd (report|evaluate paper|evaluate .*--data) ?", line)
    ]
    assert len(commands) == 5
    for command in commands:
        arguments = shlex.split(command)[1:]
        extra = ["--samples", "5"] if arguments[0] == "evaluate" else []
        assert cli.main([*arguments, *extra]) == 0
        for option in ("--out", "--html", "--plots"):
            if option in arguments:
                assert Path(arguments[arguments.index(option) + 1]).exists()
    of_sets, of_reading = 2 * 5 * 2, 2 * 7
    assert len(list((tmp_path / "runs" / "plots").iterdir())) == of_sets + of_reading
    assert "debias-b16 - published" in capsys.readouterr().out


def test_the_commands_for_other_peoples_benchmarks_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_pipeline().save_pretrained(tmp_path / "runs" / "stable-diffusion")
    save_tiny_clip(tmp_path / "runs" / "debias", window=248, seed=1)
    (tmp_path / "data" / "dpg_bench" / "prompts").mkdir(parents=True)
    (tmp_path / "data" / "dpg_bench" / "prompts" / "COCOval2014000000000026.txt").write_text("a red circle")
    row = {"tag": "single_object", "include": [{"class": "cup", "count": 1}], "prompt": "a photo of a cup"}
    (tmp_path / "data" / "evaluation_metadata.jsonl").write_text(json.dumps(row))
    (tmp_path / "data" / "color_val.txt").write_text("a green bench and a blue bowl\n")
    commands = [line for line in TEXT.splitlines() if line.startswith("debias-sd draw-set ")]
    assert len(commands) == 3
    for command in commands:
        assert cli.main([*shlex.split(command)[1:], "--steps", "1"]) == 0
    for name in ("dpg/images/COCOval2014000000000026.png", "geneval/00000/samples/0003.png",
                 "compbench/samples/a green bench and a blue bowl_000009.png"):  # fmt: skip
        assert (tmp_path / "runs" / name).is_file()


@pytest.mark.slow
def test_the_launch_of_several_processes_has_the_numbers_of_one(tmp_path):
    save_clip_model(tmp_path / "runs" / "debias-b16", length=248)
    make_coco(tmp_path / "data" / "coco")
    (line,) = [line for line in TEXT.splitlines() if line.startswith("accelerate launch ")]
    launch, command = line.split(" -m debias_sd ")
    launch = [sys.executable, "-m", "accelerate.commands.launch", *launch.split()[2:], "--main_process_port", "0"]
    results = []
    for start, cache in ((launch, "several"), ([sys.executable], "one"), (launch, "one")):
        settings = {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(tmp_path / cache), "PYTHONPATH": str(ROOT)}
        subprocess.run(
            [*start, "-m", "debias_sd", *shlex.split(command)], cwd=tmp_path, env=os.environ | settings, check=True
        )
        results.append(Report.read(tmp_path / "runs" / "coco.json"))
    several, one, again = results
    assert several.encoders == one.encoders == again.encoders
    assert [found.settings["processes"] for found in results] == [2, 1, 2]
    assert several.extra["work"] == one.extra["work"]
    assert again.extra["work"]["debias-b16"]["texts"] == 0


def test_the_document_names_every_set_group_and_published_model():
    section = TEXT.split("## Retrieval on sets")[1]
    for name in (*EVALUATION_KINDS, *GROUPS):
        assert f"`{name}`" in section
    models = {re.sub(r"-(l14|b16)$", "", row.id) for row in published_tables()[0].rows if "rerun" not in row.id}
    assert all(f"`{model}-b16`" in section for model in models)


def test_our_folders_as_clip_benchmark_loads_models(tmp_path):
    save_clip_model(tmp_path / "clip", length=248)
    load_folder = runpy.run_path(str(ROOT / "scripts" / "run_clip_benchmark.py"))["load_folder"]
    model, transform, tokenizer = load_folder(str(tmp_path / "clip"), pretrained="", cache_dir=None, device="cpu")
    embedder = Embedder(load_towers(tmp_path / "clip"), FeatureCache(None, ""), Processes())
    texts = ["a cat", LONG_PROMPT, LONG_PROMPT * 3]
    found = torch.nn.functional.normalize(model.encode_text(tokenizer(texts)), dim=-1)
    np.testing.assert_allclose(found.numpy(), embedder.texts(texts), atol=1e-6)
    draw(tmp_path / "a.png", 1)
    with Image.open(tmp_path / "a.png") as picture:
        pixels = torch.stack([transform(picture)])
    images, _, _ = embedder.pictures(ListedRecords("own", (Record("a", tmp_path / "a.png", ("x",)),)), Faults(1))
    found = torch.nn.functional.normalize(model.encode_image(pixels), dim=-1)
    np.testing.assert_allclose(found.numpy(), images, atol=1e-6)


@pytest.mark.parametrize("missing", ["clip_benchmark", "pycocoevalcap"])
def test_the_script_names_the_package_that_is_missing(tmp_path, missing, monkeypatch, capsys):
    (tmp_path / "clip_benchmark.py").write_text(f"raise ModuleNotFoundError('not here', name='{missing}')")
    monkeypatch.syspath_prepend(tmp_path)
    name = missing.replace("_", "-")
    assert run_script(ROOT / "scripts" / "run_clip_benchmark.py") == 2
    assert capsys.readouterr().err == f"run_clip_benchmark: {name} is not installed; pip install {name}.\n"
