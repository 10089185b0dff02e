"""`debias-sd`: results where they belong, one sentence and exit code 2 for a user's fault, quick help."""

import subprocess
import sys

import pytest
from PIL import Image
from tiny import LONG_PROMPT, save_clip_model, tiny_encoder, tiny_sd_pipeline

from debias_sd import cli, encoder_folder
from debias_sd.encoder import TextEncoder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A base pipeline, a long encoder with a list of known words, a 77-position encoder."""
    folder = tmp_path_factory.mktemp("models")
    tiny_sd_pipeline().save_pretrained(folder / "base")
    long = tiny_encoder()
    TextEncoder(long.model, long.tokenizer, known_words=frozenset({"a", "red", "cat"})).save(folder / "long")
    save_clip_model(folder / "short")
    return folder


def generate(call, models, out, *arguments, prompt="a red cat"):
    places = ("--base", models / "base", "--encoder", models / "long", "--steps", 2, "--device", "cpu")
    return call("generate", prompt, *places, "--out", out, *arguments)


def test_generate_writes_a_picture_with_its_settings(models, tmp_path, call):
    out = tmp_path / "cat.png"
    code, said, _ = generate(call, models, out, "--seed", 7, "--negative-prompt", "blurry")
    assert code == 0
    assert said.startswith(f"{out}: 64x64, 3 tokens in 1 window of 248, encoder {models / 'long'}, seed 7, ")
    assert said.count("\n") == 1
    with Image.open(out) as picture:
        assert picture.size == (64, 64)
        text = picture.text
    assert text["software"].startswith("debias_sd ")
    assert {name: text[name] for name in text if name != "software"} == {
        "prompt": "a red cat", "negative_prompt": "blurry", "base": str(models / "base"),
        "encoder": str(models / "long"), "window": "248", "seed": "7", "steps": "2", "guidance_scale": "7.5",
        "dtype": "float32",
    }  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["cat.png"]


def test_the_seed_decides_the_picture_and_scale_repeats_pixels(models, tmp_path, call):
    pixels = []
    for seed in (1, 1, 2):
        generate(call, models, tmp_path / "cat.png", "--seed", seed)
        with Image.open(tmp_path / "cat.png") as picture:
            pixels.append(picture.tobytes())
    assert pixels[0] == pixels[1] != pixels[2]
    generate(call, models, tmp_path / "one.png")
    generate(call, models, tmp_path / "three.png", "--scale", 3)
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "three.png") as three:
        assert three.size == (192, 192)
        assert three.resize((64, 64), resample=0).tobytes() == one.tobytes()


def test_a_prompt_file_of_any_length_and_script_keeps_its_text(models, tmp_path, call):
    prompt = "日本 😀 “cat” " + LONG_PROMPT * 3
    (tmp_path / "prompt.txt").write_text(prompt + "\n", encoding="utf-8")
    arguments = ("--base", models / "base", "--encoder", "base", "--steps", 1, "--out", tmp_path / "x.png")
    code, said, err = call("generate", "--prompt-file", tmp_path / "prompt.txt", "--window", 77, *arguments)
    assert (code, "windows of 77" in said, "warning" in err) == (0, True, False)
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.text["prompt"] == prompt


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ("A red cat", ("--window", "auto"), "3 tokens in 1 window of 77,"),
        (LONG_PROMPT, ("--window", "auto"), "in 1 window of 248,"),
        ("A red cat", ("--window", "auto", "--negative-prompt", LONG_PROMPT), "3 tokens in 1 window of 248,"),
        ("A (red:1.3) BREAK cat", ("--weighting", "a1111"), "3 tokens in 2 windows of 248,"),
        ("A (red:1.3) BREAK cat", ("--weighting", "a1111", "--window", "auto"), "3 tokens in 2 windows of 248,"),
    ],
)
def test_windows_and_weights_are_those_asked_for(models, tmp_path, call, prompt, options, said):
    code, out, err = generate(call, models, tmp_path / "x.png", *options, prompt=prompt)
    assert (code, said in out) == (0, True), out + err
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.text["window"] == said.split()[-1].rstrip(",")
        assert picture.text.get("weighting") == ("a1111" if "--weighting" in options else None)


def test_words_that_were_never_trained_are_named(models, tmp_path, call):
    code, _, err = generate(call, models, tmp_path / "x.png", prompt="A red dragon")
    assert code == 0
    assert f"warning: encoder {models / 'long'} was never trained on: dragon\n" in err
    weighted = ("--weighting", "a1111")
    _, _, err = generate(call, models, tmp_path / "x.png", *weighted, prompt="A red (dragon:1.25)")
    assert f"warning: encoder {models / 'long'} was never trained on: dragon\n" in err
    _, _, err = call("tokens", "a red dragon", "--encoder", models / "long")
    assert err.endswith("was never trained on: dragon\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--encoder", "/no/such"), "encoder folder /no/such does not exist"),
        (("--encoder", "{models}/short"), "has 77 positions but needs 248"),
        (("--base", "/no/such"), "base folder /no/such does not exist"),
        (("--base", "nobody-here/no-such-model"), "was not found locally or on the Hub"),
        (("--out", "{tmp}/cat.jpg"), "does not end in .png"),
        (("--out", "{tmp}/none/cat.png"), "its folder does not exist"),
        (("--out", "/proc/cat.png"), "output folder /proc cannot be written"),
        (("--steps", "0"), "--steps is 0"),
        (("--steps", "1001"), "--steps is 1001"),
        (("--guidance-scale", "nan"), "--guidance-scale is nan"),
        (("--out", "{tmp}/" + 300 * "n" + ".png"), "File name too long"),
        (("--scale", "100000"), "--scale is 100000"),
        (("--seed", "-1"), "--seed is -1"),
        (("--scale", "0"), "--scale is 0"),
        (("--window", "300"), "window is 300, this text encoder reads 3 to 248"),
        (("--device", "warp"), "device warp is not available here"),
        (("--device", "meta"), "device meta computes nothing"),
        (("--prompt-file", "{tmp}/none.txt"), "give one prompt"),
    ],
)
def test_a_fault_is_one_sentence_and_leaves_nothing(models, tmp_path, call, arguments, sentence):
    filled = [argument.format(models=models, tmp=tmp_path) for argument in arguments]
    code, said, err = generate(call, models, tmp_path / "cat.png", *filled)
    assert code == 2
    assert said == ""
    assert err.startswith("debias-sd: error: ")
    assert err.count("\n") == 1
    assert sentence in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "sentence"), [(b"\xff\xfe\x00", "is not UTF-8 text"), (None, "cannot be read (No such file")]
)
def test_a_prompt_file_that_cannot_be_read(tmp_path, call, content, sentence):
    if content is not None:
        (tmp_path / "prompt.txt").write_bytes(content)
    code, _, err = call("tokens", "--prompt-file", tmp_path / "prompt.txt")
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("command", ["generate", "compare", "tokens"])
def test_a_prompt_that_is_no_text_is_one_sentence(tmp_path, call, models, command):
    out = () if command == "tokens" else ("--base", models / "base", "--out", tmp_path / "x.png")
    names = ("--encoders" if command == "compare" else "--encoder", models / "long")
    code, _, err = call(command, "\udcff", *out, *names)
    assert (code, err.count("\n")) == (2, 1)
    assert "not valid text" in err


@pytest.mark.parametrize("command", [("compare", "a cat", "--encoders"), ("evaluate", "attention", "--encoder")])
def test_a_fault_makes_no_folder_for_the_output(tmp_path, call, command):
    source = "/no/such" if command[0] == "compare" else "a=/no/such"
    code, _, err = call(*command, source, "--out", tmp_path / "new" / "er" / "x.png")
    assert (code, err.count("\n")) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_commands_that_draw_leave_no_progress_bars(models, tmp_path, call):
    from diffusers.utils.logging import enable_progress_bar

    places = ("--base", models / "base", "--steps", 2, "--out", tmp_path / "x.png")
    for command, option in (("compare", "--encoders"), ("generate", "--encoder")):
        enable_progress_bar()
        code, _, err = call(command, "a red cat", option, models / "long", *places)
        assert code == 0, err
        assert "it/s" not in err


def test_pictures_of_another_base_are_drawn_and_not_judged(models, tmp_path, call):
    prompt = "A small red star sits in the top left."
    places = ("--base", models / "base", "--steps", 2, "--out", tmp_path / "x.png")
    code, said, err = call("compare", prompt, "--encoders", models / "long", *places)
    assert (code, "not judged" in said, (tmp_path / "x.png").is_file()) == (0, True, True), err


def test_without_weights_it_says_what_to_run(tmp_path, monkeypatch, call):
    monkeypatch.setattr(encoder_folder, "WEIGHTS", tmp_path)
    for command in (("generate", "a cat", "--out", tmp_path / "cat.png"), ("tokens", "a cat")):
        code, _, err = call(*command)
        assert (code, "run make weights" in err, err.count("\n")) == (2, True, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [(), *((name,) for name in cli.COMMANDS)])
def test_help_is_quick_and_loads_nothing_heavy(command):
    code = (
        "import sys, time\nfrom debias_sd.cli import main\n"
        f"try: main([*{command!r}, '--help'])\nexcept SystemExit as end: print(end.code)\n"
        "print(time.process_time(), 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, exit_code, last = done.stdout.splitlines()
    seconds, *heavy = last.split()
    assert exit_code == "0"
    assert heavy == ["False", "False"]
    assert float(seconds) < 0.5


def test_python_m_runs_the_same_command():
    done = subprocess.run([sys.executable, "-m", "debias_sd", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == "debias-sd 0.1.0\n"


@pytest.mark.skipif(not (encoder_folder.WEIGHTS / "stable-diffusion").is_dir(), reason="make weights was not run")
def test_the_embedded_models_draw(tmp_path, call):
    code, said, _ = call("generate", "a red circle", "--steps", 2, "--out", tmp_path / "x.png")
    assert code == 0
    with Image.open(tmp_path / "x.png") as picture:
        assert picture.width % 8 == 0
        assert picture.text["encoder"] == "debias"


@pytest.mark.parametrize("prompt", ["", " \n\t"])
@pytest.mark.parametrize("command", ["generate", "compare", "tokens"])
def test_an_empty_prompt_is_refused(command, prompt, tmp_path, call, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said, err = call(command, prompt)
    assert (code, said) == (2, "")
    assert err == "debias-sd: error: the prompt is empty; write what the picture should show.\n"
    (tmp_path / "prompt.txt").write_text(prompt)
    assert call(command, "--prompt-file", "prompt.txt")[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["prompt.txt"]
