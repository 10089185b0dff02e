"""Guidance and negative prompts on the command line: what would not be used is refused, what was done is kept."""

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import tiny_sd_pipeline
from tiny_pipelines import tiny_flux, tiny_sd3, tiny_sdxl

from debias_sd import cli, encode_prompt, load_debias_pipeline
from debias_sd.pipelines.options import check_guidance, default_guidance, reads_guidance


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    root = tmp_path_factory.mktemp("bases")
    families = {"sd1": tiny_sd_pipeline, "sdxl": tiny_sdxl, "sd3": tiny_sd3, "flux": flux_dev, "schnell": tiny_flux}
    for name, make in families.items():
        make().save_pretrained(root / name)
    return root


def flux_dev():
    """FLUX.1-dev, which reads its guidance; `tiny_flux` is FLUX.1-schnell."""
    pipe = tiny_flux()
    torch.manual_seed(0)
    transformer = type(pipe.transformer).from_config(pipe.transformer.config, guidance_embeds=True)
    pipe.register_modules(transformer=transformer.eval())
    return pipe


def generate(capsys, bases, base, out, *options):
    capsys.readouterr()
    words = ["generate", "a red cat", "--base", bases / base, "--encoder", "stretched", "--steps", 1, "--device", "cpu"]
    code = cli.main([str(word) for word in (*words, "--out", out, *options)])
    return (code, *capsys.readouterr())


def kept(path):
    with Image.open(path) as image:
        return np.asarray(image), image.text


@pytest.mark.parametrize(
    ("base", "scale"), [("sd1", 7.5), ("sdxl", 5.0), ("sd3", 7.0), ("flux", 3.5), ("schnell", None)]
)
def test_the_guidance_is_that_of_the_family(bases, tmp_path, capsys, base, scale):
    """Case 115."""
    code, _, err = generate(capsys, bases, base, tmp_path / "x.png")
    assert code == 0, err
    pixels, settings = kept(tmp_path / "x.png")
    assert settings.get("guidance_scale") == (None if scale is None else str(scale))
    if scale is not None:
        assert generate(capsys, bases, base, tmp_path / "y.png", "--guidance-scale", scale)[0] == 0
        assert np.array_equal(kept(tmp_path / "y.png")[0], pixels)


def test_flux_follows_a_negative_prompt_by_true_guidance(bases, tmp_path, capsys):
    """Case 115: the picture is that of diffusers' own call, and its settings say so."""
    options = ("--negative-prompt", "a blue dog", "--true-cfg-scale", 4)
    assert generate(capsys, bases, "flux", tmp_path / "with.png", *options)[0] == 0
    assert generate(capsys, bases, "flux", tmp_path / "without.png")[0] == 0
    with_it, settings = kept(tmp_path / "with.png")
    without, plain = kept(tmp_path / "without.png")
    assert (settings["negative_prompt"], settings["true_cfg_scale"]) == ("a blue dog", "4.0")
    assert (plain["negative_prompt"], "true_cfg_scale" in plain) == ("", False)
    assert not np.array_equal(with_it, without)
    pipe = load_debias_pipeline(bases / "flux", "stretched")
    states = encode_prompt(pipe, "a red cat", "a blue dog")
    drawn = pipe(
        **states, num_inference_steps=1, guidance_scale=3.5, true_cfg_scale=4.0,
        generator=torch.Generator("cpu").manual_seed(0),
    ).images[0]  # fmt: skip
    assert np.array_equal(np.asarray(drawn), with_it)


@pytest.mark.parametrize(
    ("base", "options", "sentence"),
    [
        (
            "flux",
            ("--negative-prompt", "x"),
            "does not use a negative prompt without --true-cfg-scale; give --true-cfg",
        ),
        ("flux", ("--negative-prompt", "x", "--true-cfg-scale", "1"), "at --true-cfg-scale 1; give"),
        ("schnell", ("--negative-prompt", "x"), "does not use a negative prompt without --true-cfg-scale"),
        ("flux", ("--true-cfg-scale", "4"), "--true-cfg-scale does nothing without a negative prompt"),
        ("flux", ("--true-cfg-scale", "inf"), "--true-cfg-scale is inf but must be a finite number"),
        ("sd1", ("--true-cfg-scale", "4"), "--true-cfg-scale is for FLUX and StableDiffusionPipeline does not take it"),
        (
            "sd1",
            ("--negative-prompt", "x", "--guidance-scale", "1"),
            "negative prompt at --guidance-scale 1; leave it out",
        ),
        (
            "sd3",
            ("--negative-prompt", "x", "--guidance-scale", "0"),
            "negative prompt at --guidance-scale 0; leave it out",
        ),
        (
            "schnell",
            ("--guidance-scale", "3"),
            "--guidance-scale is 3 but this FluxPipeline was distilled without guidance",
        ),
    ],
)
@pytest.mark.parametrize("command", ["generate", "compare"])
def test_what_a_pipeline_would_not_use_is_refused(bases, tmp_path, capsys, command, base, options, sentence):
    """Case 115."""
    words = [command, "a red cat", "--base", bases / base, "--steps", 1, "--out", tmp_path / "x.png", *options]
    code = cli.main([str(word) for word in (*words, *(["--encoder", "stretched"] if command == "generate" else []))])
    said, err = capsys.readouterr()
    assert (code, said, err.count("\n")) == (2, "", 1), err
    assert sentence in err
    assert list(tmp_path.iterdir()) == []


def test_compare_draws_flux_with_a_negative_prompt(bases, tmp_path, capsys):
    """Case 115."""
    words = ["compare", "a red cat", "--base", bases / "flux", "--steps", 1, "--json", "--encoders", "base"]
    pictures = {}
    for name, more in {"plain": (), "guided": ("--negative-prompt", "a dog", "--true-cfg-scale", 5)}.items():
        assert cli.main([str(word) for word in (*words, "--out", tmp_path / f"{name}.png", *more)]) == 0
        pictures[name] = (tmp_path / f"{name}.png").read_bytes()
    assert pictures["plain"] != pictures["guided"]


def test_a_unet_that_was_distilled_takes_no_negative_prompt():
    """Case 115: a latent consistency model reads the scale itself."""
    pipe = tiny_sd_pipeline()
    assert (default_guidance(pipe), reads_guidance(pipe)) == (7.5, True)
    check_guidance(pipe, scale=7.5, negative="x")
    pipe.unet.register_to_config(time_cond_proj_dim=8)
    with pytest.raises(
        ValueError, match="does not use a negative prompt because its UNet was distilled; leave it out.$"
    ):
        check_guidance(pipe, scale=7.5, negative="x")
