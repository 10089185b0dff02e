"""Comparing encoders: what is marked where, the table, the picture and the command."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd import demo
from debias_sd.cli import main
from debias_sd.comparison import Comparison, Panel, compare_encoders, judge_sentences, sentences_of, table_of
from debias_sd.datasets.world import prompt_set
from debias_sd.encoder import TextEncoder
from debias_sd.measure.judges.checker import CheckerJudge
from debias_sd.panels import MAX_ROWS, draw_panels
from debias_sd.pipelines.load import load_debias_pipeline
from debias_sd.shapes.render import render
from debias_sd.shapes.scene import Scene
from debias_sd.shapes.tokenizer import build_tokenizer

PROMPTS = prompt_set(7, count=1)
CAPTION, SCENE = PROMPTS.captions[0], PROMPTS.scenes[0]
TOKENIZER = build_tokenizer()


def panel_with(name: str, window: int, sentences: int, *, prompt: str = CAPTION.text) -> Panel:
    """A panel whose picture holds what the first `sentences` sentences name."""
    kept = {thing for things in CAPTION.named[:sentences] for thing in things}
    image = render(Scene(SCENE.background, tuple(thing for thing in SCENE.things if thing in kept)))
    rows = sentences_of(prompt, TOKENIZER)
    return Panel(name, window, image, judge_sentences(CheckerJudge(), image, rows, window=window))


def comparison_of(*panels: Panel, prompt: str = CAPTION.text) -> Comparison:
    return Comparison(prompt, 3, sentences_of(prompt, TOKENIZER), panels)


def test_sentences_know_their_tokens_and_things_and_half_a_summary_is_counted():
    rows = sentences_of(CAPTION.text, TOKENIZER)
    assert [row.text for row in rows] == list(CAPTION.sentences)
    assert [row.things for row in rows] == list(CAPTION.named)
    assert rows[0].first == 1
    assert rows[-1].last == len(TOKENIZER(CAPTION.text)["input_ids"]) - 2
    only = render(Scene(SCENE.background, SCENE.things[:1]))
    rows = sentences_of(CAPTION.text, TOKENIZER)
    assert judge_sentences(CheckerJudge(), only, rows, window=77)[0].mark == "1 of 2"
    # 0 of 0 would look like a measurement.
    vague = "A quiet evening."
    comparison = comparison_of(panel_with("base", 77, 0, prompt=vague), prompt=vague)
    assert comparison.total(comparison.panels[0]) == (0, 0)
    (row,) = [line for line in table_of(comparison).splitlines() if "sentences drawn" in line]
    assert row.split() == ["sentences", "drawn", "not", "judged"]
    assert draw_panels(comparison).size[0] > 288


def test_marks_say_drawn_missing_not_read_and_not_judged():
    whole, first = panel_with("debias", 248, 9), panel_with("base", 77, 1)
    comparison = comparison_of(whole, first)
    marks = [verdict.mark for verdict in first.verdicts]
    assert marks[0] == "drawn"
    assert "missing" in marks
    assert comparison.total(whole) == (len(CAPTION.sentences),) * 2
    for sentence, mark in zip(comparison.sentences, marks, strict=True):
        assert (mark == "not read") <= (sentence.first >= 76)
        assert (mark == "missing") <= (sentence.first < 76)
    vague = "A quiet evening. There is a small red star in the top left."
    comparison = comparison_of(panel_with("base", 77, 0, prompt=vague), prompt=vague)
    assert comparison.panels[0].verdicts[0].mark == "not judged"
    assert comparison.total(comparison.panels[0])[1] == 1
    assert comparison.total_in_words(comparison.panels[0]) == "0 of 1"


def test_the_table_has_a_line_for_each_sentence_and_a_column_for_each_encoder():
    table = table_of(comparison_of(panel_with("base", 77, 1), panel_with("debias", 248, 9))).splitlines()
    assert table[0].split() == ["tokens", "sentence", "CLIP", "DeBias-CLIP"]
    assert len(table) == 2 + len(CAPTION.sentences) + 3
    assert table[-1].split()[-2:] == ["77", "248"]
    assert f"{len(CAPTION.sentences)} of {len(CAPTION.sentences)}" in table[-2]


def test_the_picture_shows_every_panel_as_it_is():
    panels = (panel_with("base", 77, 2), panel_with("long-clip", 248, 4), panel_with("debias", 248, 9))
    image = np.asarray(draw_panels(comparison_of(*panels)))
    large = [np.kron(panel.image, np.ones((6, 6, 1), np.uint8)) for panel in panels]
    for number, pixels in enumerate(large):
        left = 28 + 470 + 22 + number * (288 + 22)
        assert np.array_equal(image[82 : 82 + 288, left : left + 288], pixels)


@pytest.mark.parametrize("prompt", ["", "word " * 10_000, "A star. " * 500, "🙂 星がある。 naïve <|endoftext|>"])
def test_odd_prompts_make_a_picture_of_bounded_size(prompt):
    comparison = comparison_of(panel_with("base", 77, 1, prompt=prompt), prompt=prompt)
    height = draw_panels(comparison).height
    assert height < 700 + MAX_ROWS * 110
    assert table_of(comparison)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    tiny_pipeline().save_pretrained(root / "sd")
    save_tiny_clip(root / "base")
    save_tiny_clip(root / "debias", window=248, seed=1)
    return root


def test_same_seed_same_picture_and_each_encoder_its_own(folders):
    base = tiny_pipeline()
    encoders = {name: TextEncoder.load(folders / name) for name in ("base", "debias")}
    seen = []
    first = compare_encoders(CAPTION.text, encoders, base=base, seed=4, steps=2, progress=seen.append)
    again = compare_encoders(CAPTION.text, encoders, base=base, seed=4, steps=2)
    assert seen == ["base", "debias"]
    assert [panel.window for panel in first.panels] == [77, 248]
    for one, other in zip(first.panels, again.panels, strict=True):
        assert np.array_equal(one.image, other.image)
    assert not np.array_equal(first.panels[0].image, first.panels[1].image)


def test_the_command_prints_json_and_writes_the_picture(folders, tmp_path, capsys):
    out = tmp_path / "compare.png"
    arguments = ["compare", CAPTION.text, "--base", str(folders / "sd"), "--steps", "2", "--out", str(out)]
    arguments += ["--json", "--encoders", str(folders / "base"), str(folders / "debias")]
    assert main(arguments) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["prompt"] == CAPTION.text
    assert len(content["sentences"]) == len(CAPTION.sentences)
    assert set(content["sentences"][0]["marks"]) == {"base", "debias"}
    with Image.open(out) as image:
        assert image.width > 900
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.png"]


def test_base_is_the_encoder_of_a_base_that_was_named_and_a_negative_prompt_counts(folders, tmp_path, capsys):
    arguments = ["compare", CAPTION.text, "--base", str(folders / "sd"), "--steps", "2", "--json"]
    pictures = {}
    for name, more in {"own": [], "negative": ["--negative-prompt", "a red star"]}.items():
        out = tmp_path / f"{name}.png"
        assert main([*arguments, "--out", str(out), "--encoders", "base", str(folders / "debias"), *more]) == 0
        pictures[name] = out.read_bytes()
    assert pictures["own"] != pictures["negative"]
    base = tiny_pipeline()
    panels = compare_encoders(CAPTION.text, {"base": None}, base=base, steps=2).panels
    assert panels[0].window == base.tokenizer.model_max_length == 77
    capsys.readouterr()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_size_device_and_kind_of_numbers_reach_the_pictures(folders, tmp_path, dtype):
    real = tiny_pipeline()
    real.unet.register_to_config(sample_size=16)  # 128 x 128 pixels: not the embedded world's, and no checker's
    real.save_pretrained(tmp_path / "sd")
    out = tmp_path / "sized.png"
    arguments = ["compare", CAPTION.text, "--base", str(tmp_path / "sd"), "--steps", "2", "--seed", "3", "--json"]
    arguments += ["--size", "64", "--device", "cpu", "--dtype", dtype, "--guidance-scale", "2"]
    assert main([*arguments, "--out", str(out), "--encoders", "base", str(folders / "debias")]) == 0
    base = load_debias_pipeline(tmp_path / "sd", "base", torch_dtype=getattr(torch, dtype))
    encoders = {"base": None, "debias": TextEncoder.load(folders / "debias")}
    expected = compare_encoders(CAPTION.text, encoders, base=base, seed=3, steps=2, guidance=2.0, side=64)
    assert {panel.image.shape for panel in expected.panels} == {(64, 64, 3)}
    content = io.BytesIO()
    draw_panels(expected).save(content, format="PNG")
    assert out.read_bytes() == content.getvalue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "picture.jpg"], "does not end in .png"),
        (["--steps", "0"], "--steps is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--encoders", "nowhere/at/all"], "does not exist"),
        (["--size", "64"], "--size is 64 but must be a multiple of 8, with a --base"),
        (["--base", "org/sd", "--size", "60"], "--size is 60 but must be a multiple of 8"),
        (["--device", "gpu"], "gpu"),
        (["--encoders", "a/base", "b/base"], "has the name 'base' twice"),
    ],
)
def test_faults_are_one_sentence_and_leave_nothing(options, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", "A star.", *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_the_demo_prompt_is_long_and_judged_in_every_sentence():
    rows = sentences_of(demo.demo_prompt(), TOKENIZER)
    assert rows[-1].last > 76
    assert all(row.things for row in rows)


def test_the_demo_without_models_says_so_in_one_sentence(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("debias_sd.encoder_folder.WEIGHTS", Path("none"))
    assert demo.main() == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("demo: error: ")
    assert "run make weights" in error
    assert not list(tmp_path.iterdir())
