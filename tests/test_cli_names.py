"""Names on the command line: what an encoder's name means everywhere, the nearest one for a misspelt word, flags."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from tiny import LONG_PROMPT, save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_flux, tiny_sdxl

from debias_sd.commands.arguments import default_names, read_name, read_names
from debias_sd.report import Report


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_sd_pipeline().save_pretrained(folder / "base")
    tiny_sdxl().save_pretrained(folder / "sdxl")
    tiny_flux().save_pretrained(folder / "flux")
    tiny_encoder().save(folder / "long")
    save_clip_model(folder / "short")
    (folder / "file.safetensors").write_bytes(b"no checkpoint")
    return folder


def test_names_of_encoders_are_read_alike():
    """Case 119."""
    words = ["base", "stretched", "Mine=runs/a=b", "org/x-sd/", "runs/s1/debias"]
    assert read_names(words, flag="--encoders") == {
        "base": "base", "stretched": "stretched", "Mine": "runs/a=b", "x-sd": "org/x-sd/", "debias": "runs/s1/debias",
    }  # fmt: skip
    for wrong, sentence in (
        (["=x"], "--encoder is '=x', expected NAME=SOURCE or SOURCE"),
        (["a="], "'a='"),
        (["a", "b/a"], "'a' twice"),
    ):
        with pytest.raises(ValueError, match=sentence):
            read_names(wrong, flag="--encoder")
    assert default_names(None) == ("base", "long-clip", "debias")
    assert default_names("any") == ("base", "stretched")


def test_a_folder_with_an_equals_sign_is_a_folder(tmp_path, monkeypatch):
    """Case 119."""
    (tmp_path / "lr=0.1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert read_name("lr=0.1", flag="--encoder") == (None, "lr=0.1")
    assert read_name("a=lr=0.1", flag="--encoder") == ("a", "lr=0.1")


@pytest.mark.parametrize("base", ["base", "sdxl"])
def test_compare_with_a_base_takes_what_the_base_has(models, tmp_path, call, base):
    """Case 119."""
    out = tmp_path / "x.png"
    places = ("--base", models / base, "--steps", 1, "--out", out, "--json")
    code, said, err = call("compare", "a red cat", *places)
    assert code == 0, err
    found = json.loads(said)["encoders"]
    assert {name: one["window"] for name, one in found.items()} == {"base": 77, "stretched": 248}
    named = call("compare", "a red cat", *places, "--encoders", "base", "stretched")
    assert named[1] == said
    parts = call("compare", "a red cat", *places, "--encoders", "chunked", "sentences")
    assert {name: one["window"] for name, one in json.loads(parts[1])["encoders"].items()} == {
        "chunked": None,
        "sentences": None,
    }


def test_a_name_means_the_same_in_every_command(models, tmp_path, call):
    """Case 119: the picture of generate is that of compare, and fidelity measures it."""
    places = ("--base", models / "base", "--steps", 1)
    pictures = {}
    for name in ("base", "stretched", "chunked", "sentences", models / "long"):
        code, _, err = call("generate", LONG_PROMPT, *places, "--encoder", name, "--out", tmp_path / "g.png")
        assert code == 0, err
        with Image.open(tmp_path / "g.png") as image:
            pictures[str(name)] = np.asarray(image)
    assert np.array_equal(pictures["base"], pictures["chunked"])  # generate never cuts
    assert not np.array_equal(pictures["base"], pictures["stretched"])
    assert not np.array_equal(pictures["base"], pictures["sentences"])
    code, said, err = call(
        "tokens", "a cat", "--base", models / "base", "--encoder", "base", "--encoder", "stretched",
        "--encoder", "sentences", "--json",
    )  # fmt: skip
    assert (code, [row["length"] for row in json.loads(said)["encoders"]]) == (0, [77, 248, 77]), err
    code, said, err = call("tokens", "a cat", "--encoder", f"mine={models / 'long'}", "--json")
    assert (code, json.loads(said)["encoders"][0]["encoder"]) == (0, "mine"), err
    (tmp_path / "prompts.txt").write_text("a red cat\n")
    words = ("--prompts", tmp_path / "prompts.txt", "--judge", f"clip:{models / 'short'}", "--out", tmp_path / "r.json")
    encoders = ("--encoder", "own=base", "longer=stretched", "read=sentences", models / "long")
    code, _, err = call("evaluate", "fidelity", *encoders, *places, *words, "--samples", 5, "--no-floor")
    assert code == 0, err
    windows = {name: one["window"] for name, one in Report.read(tmp_path / "r.json").encoders.items()}
    assert windows == {
        "own": 77, "own-chunked": 77, "own-stretched": 248, "own-by-sentence": 77, "longer": 248, "read": 77,
        "long": 248,
    }  # fmt: skip


MISSPELT = [
    (("genrate", "a cat"), "COMMAND is 'genrate' but .*did you mean generate"),
    (("generate", "a cat", "--encodr", "base"), "--encodr is not an option of debias-sd generate .*mean --encoder"),
    (("compare", "a cat", "--negative_promt", "x"), "mean --negative-prompt"),
    (("evaluate", "retrieval", "--encodr", "a=b", "--out", "x"), "--encodr is not an option .*mean --encoder"),
    (("evaluate", "retreival", "--encoder", "a=b", "--out", "x"), "must be one of retrieval, .*mean retrieval"),
    (("--versoin",), "--versoin is not an option of debias-sd .*mean --version"),
    (("convert", "a", "b", "--streched"), "mean --stretch"),
    (("generate", "a cat", "--dtype", "flaot16"), "--dtype is 'flaot16' but .*mean float16"),
    (("generate", "a", "red", "cat"), "'red' is one argument too many"),
    (("generate", "a cat", "--steps", "many"), "argument --steps: invalid int value: 'many'"),
    (("generate", "a cat", "--encoder", "debais"), "--encoder is 'debais', .*did you mean debias?"),
    (("compare", "a cat", "--encoders", "base", "Long-Clip"), "--encoders is 'Long-Clip', .*did you mean long-clip?"),
    (("tokens", "a cat", "--encoder", "strected"), "did you mean stretched?"),
    (("evaluate", "retrieval", "--encoder", "a=debiased", "--out", "x"), "did you mean debias?"),
    (
        (
            "draw-set",
            "--layout",
            "t2i-compbench",
            "--prompts",
            "{models}/p.txt",
            "--out",
            "{tmp}/s",
            "--encoder",
            "bse",
        ),
        "mean base",
    ),
    (
        ("evaluate", "attention", "--encoder", "a=stretched", "--out", "x"),
        "--encoder is 'stretched', the encoder of a pip",
    ),
]


@pytest.mark.parametrize(("words", "sentence"), MISSPELT)
def test_a_misspelt_word_gets_the_nearest_one(models, tmp_path, call, words, sentence):
    """Case 121."""
    (models / "p.txt").write_text("a cat\n")
    code, said, err = call(*(word.format(models=models, tmp=tmp_path) for word in words))
    assert (code, said, err.count("\n")) == (2, "", 1), err
    assert re.search(sentence, err), err


# Common mistakes, each of which ends in a sentence of the library.
MISTAKES = [
    ("generate", "--base", "{m}/sdxl"),
    ("generate", "--base", "{m}/base", "--encoder", "base", "--encoder-2", "{m}/long"),
    ("generate", "--base", "{m}/base", "--encoder", "{m}/short"),
    ("generate", "--base", "{m}/sdxl", "--encoder", "{m}/long", "--encoder-2", "{m}/long"),
    ("generate", "--base", "{m}/flux", "--encoder", "stretched", "--encoder-2", "stretched"),
    ("generate", "--base", "{m}/file.safetensors", "--encoder", "base"),
    ("generate", "--base", "{m}/base", "--encoder", "stretched", "--window", "1"),
    ("generate", "--base", "{m}/base", "--encoder", "stretched", "--window", "9999"),
    ("generate", "--base", "{m}/long", "--encoder", "base"),
    ("generate", "--base", "{m}/none", "--encoder", "base"),
    ("generate", "--base", "{m}/base", "--encoder", "{m}/base"),
    ("generate", "--base", "{m}/base", "--encoder", "{m}/file.safetensors"),
    ("generate", "--base", "{m}/base", "--encoder", "stretched", "--true-cfg-scale", "3"),
    ("generate", "--base", "{m}/flux", "--encoder", "stretched", "--negative-prompt", "x"),
    ("generate", "--base", "{m}/flux", "--encoder", "stretched", "--guidance-scale", "nan"),
    ("compare", "--base", "{m}/base", "--encoders", "{m}/sdxl"),
    ("compare", "--base", "{m}/base", "--negative-prompt", "x", "--guidance-scale", "1"),
    ("tokens", "--base", "{m}/long"),
    ("tokens", "--encoder", "{m}/base"),
    ("convert", "{m}/long", "{t}/x", "--part", "7"),
    ("convert", "{m}/long", "{t}/x", "--heads", "7"),
    ("convert", "{m}/long", "{t}/x", "--positions", "published"),
    ("convert", "{m}/long", "{t}/x", "--positions-needed", "999"),
    ("convert", "{m}/long", "{t}/x", "--stretch"),
    ("convert", "{m}/none", "{t}/x"),
    ("export", "{m}/long", "{t}/x.bin", "--to", "comfyui"),
    ("export", "{m}/short", "{t}/x", "--to", "long-clip"),
]
PYTHON = re.compile(r"(?:^|\s)[a-z_0-9]+=(?=[\s'\d]|$)|\b(?:encoder_2|negative_prompt|guidance_scale|true_cfg_scale)\b")


@pytest.mark.parametrize("mistake", MISTAKES, ids=" ".join)
def test_a_message_of_the_command_line_names_its_options(models, tmp_path, call, mistake):
    """Case 126."""
    words = [word.format(m=models, t=tmp_path) for word in mistake]
    prompt = ["a red cat"] if words[0] in ("generate", "compare", "tokens") else []
    out = ["--out", tmp_path / "x.png"] if words[0] in ("generate", "compare") else []
    code, said, err = call(words[0], *prompt, *words[1:], *out)
    assert (code, said, err.count("\n")) == (2, "", 1), err
    assert "(in Python, as an argument of load_debias_pipeline)" in err or not PYTHON.search(err), err
    assert list(tmp_path.iterdir()) == []
