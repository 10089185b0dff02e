"""`debias-sd generate` with bases of other families than Stable Diffusion 1.x."""

import re

import pytest
from PIL import Image
from tiny import END, LONG_PROMPT, tiny_encoder
from tiny_pipelines import second_encoder, tiny_animatediff, tiny_flux, tiny_sd3, tiny_sdxl, tiny_sdxl_refiner

from debias_sd import cli

SDXL = (
    f"text_encoder: given, CLIPTextModel, 248 tokens, 32 wide, padded with id {END}\n"
    "text_encoder_2: {}, CLIPTextModelWithProjection, 248 tokens, 48 wide, padded with id 0\n"
)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders")
    tiny_encoder().save(folder / "first")
    second_encoder().save(folder / "second")
    return folder


def generate(capsys, *arguments):
    capsys.readouterr()
    code = cli.main(["generate", *map(str, arguments), "--steps", "2", "--device", "cpu"])
    return (code, *capsys.readouterr())


def test_sdxl_says_what_is_in_its_slots(encoders, tmp_path, capsys):
    tiny_sdxl().save_pretrained(tmp_path / "base")
    places = (LONG_PROMPT, "--base", tmp_path / "base", "--encoder", encoders / "first", "--out", tmp_path / "x.png")
    code, said, err = generate(capsys, *places, "--show-encoders")
    assert (code, err) == (0, "")
    assert f"128 tokens in 1 window of 248, encoder {encoders / 'first'}" in said
    assert said.endswith(SDXL.format("stretched"))
    code, said, _ = generate(capsys, *places, "--show-encoders", "--encoder-2", encoders / "second")
    assert code == 0
    assert said.endswith(SDXL.format("given"))
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.text["encoder_2"] == str(encoders / "second")


@pytest.mark.parametrize("make", [tiny_sd3, tiny_flux])
def test_transformers_draw_too(make, tmp_path, capsys):
    make().save_pretrained(tmp_path / "base")
    places = ("--base", tmp_path / "base", "--encoder", "stretched", "--out", tmp_path / "x.png", "--window", 77)
    code, said, err = generate(capsys, LONG_PROMPT, *places)
    assert (code, err) == (0, "")
    assert "128 tokens in 2 windows of 77, encoder stretched" in said


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (tiny_sdxl_refiner, (), "base is a StableDiffusionXLImg2ImgPipeline, which starts from a picture"),
        (tiny_animatediff, ("--encoder", "stretched"), "base is a AnimateDiffPipeline, which makes films"),
        (tiny_flux, ("--encoder", "stretched", "--encoder-2", "stretched"), "FLUX has one CLIP text encoder; leave"),
        (tiny_sdxl, (), "no encoder is named for .*; give --encoder a folder"),
    ],
)
def test_what_generate_cannot_draw_is_told_in_one_sentence(make, options, sentence, tmp_path, capsys):
    make().save_pretrained(tmp_path / "base")
    code, said, err = generate(capsys, "a cat", "--base", tmp_path / "base", *options, "--out", tmp_path / "x.png")
    assert (code, said) == (2, "")
    assert err.count("\n") == 1
    assert re.search(sentence, err)
    assert not (tmp_path / "x.png").exists()
