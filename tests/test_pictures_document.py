"""What docs/pictures.md tells a user to type works, in its order; its tables are those of the reports in the tree."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import LONG_PROMPT, save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_judges import save_blip

from debias_sd import cli
from debias_sd.encoder_folder import WEIGHTS
from debias_sd.measure.reports.page import read_entries
from debias_sd.measure.reports.pictures import TABLES
from debias_sd.report import Report

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "pictures.md").read_text(encoding="utf-8")
COMMANDS = [line for line in TEXT.splitlines() if line.startswith("debias-sd ")]
REAL, WORLD = COMMANDS[:3], COMMANDS[3:]


def run(command: str, *options: str) -> None:
    arguments = shlex.split(command)[1:]
    assert cli.main([*arguments, *options]) == 0
    for option in ("--out", "--html", "--pictures"):
        if option in arguments:
            assert Path(arguments[arguments.index(option) + 1]).exists()


@pytest.mark.slow
def test_the_commands_for_real_pictures_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    tiny_sd_pipeline().save_pretrained("runs/stable-diffusion")
    tiny_encoder().save("runs/debias")
    save_clip_model(Path("runs/clip-l14"))
    save_blip(Path("runs/blip-vqa"))
    Path("data").mkdir()
    (line,) = [line for line in TEXT.splitlines() if line.startswith('{"image"')]
    rows = []
    for number in range(8):
        pixels = np.random.default_rng(number).integers(0, 256, (20, 20, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(f"data/photo-{number}.jpg")
        rows.append(json.dumps(json.loads(line) | {"image": f"photo-{number}.jpg"}))
    Path("data/known.jsonl").write_text("\n".join(rows))
    Path("data/prompts.jsonl").write_text(json.dumps({"prompt": LONG_PROMPT}))
    assert [command.split()[1] for command in REAL] == ["calibrate", "evaluate", "report"]
    run(REAL[0], "--samples", "5")
    run(REAL[1], "--samples", "5", "--steps", "1")
    run(REAL[2])
    report = Report.read("runs/pictures.json")
    assert list(report.encoders) == ["clip", "clip-chunked", "clip-stretched", "clip-by-sentence", "debias"]
    can_say_drawn = [judge["thresholds"]["drawn"] is not None for judge in report.extra["judges"].values()]
    assert Path("runs/plots").exists() == any(can_say_drawn)
    assert {judge["thresholds"]["source"] for judge in report.extra["judges"].values()} == {"known.jsonl, 4 pictures"}
    assert "not calibrated" not in capsys.readouterr().err


@pytest.mark.skipif(not WEIGHTS.is_dir(), reason="the embedded models have not been made")
def test_the_commands_for_the_embedded_world_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [command.split()[1] for command in WORLD] == ["calibrate", "evaluate"]
    run(WORLD[0], "--samples", "5", "--count", "8")
    run(WORLD[1], "--samples", "5", "--count", "2", "--steps", "2")
    report = Report.read("runs/world.json")
    assert list(report.encoders) == ["base", "base-chunked", "base-stretched", "base-by-sentence", "debias"]
    assert list(report.extra["agreement"]) == ["clip:debias against checker"]


def test_the_tables_are_those_of_the_reports():
    entries = read_entries(sorted((ROOT / "results" / "judges").glob("*.json")))
    kinds = dict.fromkeys(entry.report.kind for entry in entries)
    tables = [table for kind in kinds for table in TABLES[kind]([e for e in entries if e.report.kind == kind])]
    assert len(tables) >= 5
    for table in tables:
        assert table.as_markdown() in TEXT
