"""`scripts/real.py` from nothing to its table, on tiny pipelines; a second call makes nothing twice."""

import importlib.util
import json
from pathlib import Path

import pytest
from tiny import save_clip_model
from tiny_pipelines import FAMILIES

from tests.test_lengthen import texts_of

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("family", ["sd", pytest.param("sdxl", marks=pytest.mark.slow)])
def test_it_lengthens_draws_judges_and_writes_the_table(family, tmp_path, capfd):
    spec = importlib.util.spec_from_file_location("real", ROOT / "scripts" / "real.py")
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    FAMILIES[family]().save_pretrained(tmp_path / "base")
    save_clip_model(tmp_path / "clip")
    texts = texts_of(12)
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    (tmp_path / "prompts.txt").write_text("\n".join(texts[:2]))
    given = ["--base", str(tmp_path / "base"), "--texts", str(tmp_path / "texts.txt"), "--out", str(tmp_path / "out")]
    given += ["--prompts", str(tmp_path / "prompts.txt"), "--judge", f"clip:{tmp_path / 'clip'}"]
    given += ["--lengthen=--steps 2 --batch 4", "--draw=--steps 1 --device cpu --samples 10"]
    assert real.main(given) == 0
    table = (tmp_path / "out" / "table.md").read_text()
    rows = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert rows[1:5] == ["base", "base-chunked", "base-by-sentence", "lengthened"]
    assert all(name in rows for name in ("lengthen", "draw and judge", *real.PUBLISHED))
    assert (tmp_path / "out" / "lengthened" / "encoder_2").is_dir() == (family == "sdxl")
    made = (tmp_path / "out" / "lengthened" / "model.safetensors").stat().st_mtime_ns
    capfd.readouterr()
    assert real.main(given) == 0
    assert (tmp_path / "out" / "lengthened" / "model.safetensors").stat().st_mtime_ns == made
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["encoders"]["lengthened"]["pictures"]["drawn"] == 0  # all were there
