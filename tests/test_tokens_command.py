"""`debias-sd tokens`: the picture, the JSON, and screens that show little."""

import io
import json
import sys
from types import SimpleNamespace

import pytest
from tiny import LONG_PROMPT, edit_json, save_clip_model, tiny_encoder, tiny_sd_pipeline, tiny_tokenizer
from tiny_pipelines import tiny_sd3
from tiny_siglip import make_siglip

from debias_sd import cli, count_tokens
from debias_sd.commands.tokens import Screen, picture
from debias_sd.encoder import TextEncoder

WIDE = Screen(100, blocks=True, colour=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A long encoder with a list of known words, an encoder of 77 positions, a pipeline with three encoders."""
    folder = tmp_path_factory.mktemp("models")
    long = tiny_encoder()
    TextEncoder(long.model, long.tokenizer, known_words=frozenset({"a", "red", "cat"})).save(folder / "long")
    save_clip_model(folder / "short")
    tiny_sd3().save_pretrained(folder / "sd3")
    return folder


@pytest.fixture(autouse=True)
def _columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("NO_COLOR", raising=False)


def test_the_picture_says_what_is_read_and_lost(models, call):
    prompt = "cat " * 80 + "dog"
    code, said, err = call("tokens", prompt, "--encoder", models / "short", "--encoder", models / "long")
    assert (code, err) == (0, f"debias-sd: warning: encoder {models / 'long'} was never trained on: dog\n")
    bars = [
        "  77 [" + "█" * 64 + "░" * 5 + "] reads 75, loses 6",
        "     lost at 77: cat cat cat cat cat dog",
        "     window 1, 75 tokens: " + "cat " * 16 + "cat ...",
        "     window 2, 6 tokens: cat cat cat cat cat dog",
        " 248 [" + "█" * 69 + "] reads 81, loses nothing",
    ]
    own = [f"{models / name}: 81 tokens, reads {length} at once" for name, length in (("short", 77), ("long", 248))]
    assert said.splitlines() == [own[0], *bars, own[1], *bars]


def test_json_has_all_of_it_and_what_an_encoder_loses_by_itself(models, call):
    code, said, err = call("tokens", "a red dragon", "--encoder", models / "long", "--json")
    assert (code, err) == (0, "")
    (row,) = json.loads(said)["encoders"]
    read = {"kept": "a red dragon", "lost": "", "kept_tokens": 3, "lost_tokens": 0}
    windows = [{"tokens": 3, "text": "a red dragon"}]
    assert row == {
        "encoder": str(models / "long"), "tokens": 3, "length": 248, **read, "unknown_words": ["dragon"],
        "readings": {str(length): {"length": length, **read, "windows": windows} for length in (77, 248)},
        "words": [{"word": word, "tokens": 1, "parts": [word], "weight": 1.0} for word in ("a", "red", "dragon")],
        "left_out": [],
    }  # fmt: skip
    _, said, _ = call("tokens", LONG_PROMPT, "--encoder", models / "short", "--json")
    content = json.loads(said)
    (row,) = content["encoders"]
    assert content["prompt"] == row["kept"] + row["lost"] == LONG_PROMPT
    assert (row["length"], row["kept_tokens"], row["lost_tokens"]) == (77, 75, 53)
    assert row["readings"]["248"]["lost"] == ""
    assert "".join(window["text"] for window in row["readings"]["77"]["windows"]) == LONG_PROMPT


def test_markup_is_read_where_it_is_said(models, call):
    prompt = "a (red:1.3) cat BREAK <lora:x:1> cat"
    _, said, err = call("tokens", prompt, "--encoder", models / "short", "--weighting", "a1111", "--words")
    assert said.startswith(f"{models / 'short'}: 4 tokens")
    assert "tokens of each word: a(1) red(1) cat(1) cat(1)" in said
    assert "left out: <lora:x:1>" in said
    assert "<lora:x:1> in the prompt loads nothing and is left out" in err
    _, said, err = call("tokens", prompt, "--encoder", models / "short")
    assert "4 tokens" not in said
    assert "<lora:x:1> in the prompt loads nothing and is read as text" in err


def test_a_pipeline_shows_all_of_its_encoders(models, call):
    code, said, _ = call("tokens", "cat " * 300, "--base", models / "sd3")
    heads = [line for line in said.splitlines() if " at once" in line]
    names = ("text_encoder", "text_encoder_2", "text_encoder_3")
    assert code == 0
    assert [line.split(":")[0] for line in heads] == [f"{models / 'sd3'}/{name}" for name in names]
    assert [line.split(": ")[1] for line in heads[:2]] == ["300 tokens, reads 77 at once"] * 2
    assert " 256 [" in said
    assert " 512 [" in said


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ("a cat", "--base", "/no/such"),
            "base /no/such has no model_index.json; give the folder of a whole pipeline.",
        ),
        (("a cat", "--encoder", "/no/such"), "encoder folder /no/such does not exist"),
        ((), "give one prompt"),
        (("  ",), "the prompt is empty"),
        (("a cat", "--encoder", "{listed}"), "is a whole pipeline; give it as --base, which reads all of"),
        (("a cat", "--encoder", "{siglip}"), "model_type 'siglip', which must be 'clip' or"),
        (("a cat", "--base", "{broken}"), "tokenizer files in {broken}/tokenizer_3 are damaged; copy them again."),
        (("a cat", "--base", "{listed}"), "is not a JSON object; copy the folder again."),
    ],
)
def test_a_fault_is_one_sentence(tmp_path, call, arguments, sentence):
    broken, listed = tmp_path / "broken", tmp_path / "listed"
    if "broken" in sentence:
        tiny_sd3().save_pretrained(broken)
        (broken / "tokenizer_3" / "tokenizer.json").write_text("{")
    siglip = tmp_path / "siglip"
    if "siglip" in sentence:
        make_siglip(siglip, "own")
    listed.mkdir()
    (listed / "model_index.json").write_text("[]")
    places = {"broken": broken, "listed": listed, "siglip": siglip}
    code, said, err = call("tokens", *(argument.format(**places) for argument in arguments))
    assert (code, said, err.count("\n")) == (2, "", 1)
    assert sentence.format(**places) in err


def test_a_pipeline_of_another_family_is_refused(tmp_path, call):
    tiny_sd_pipeline().save_pretrained(tmp_path)
    edit_json(tmp_path / "model_index.json", _class_name="NoPipeline", unet=None, vae=None)
    code, _, err = call("tokens", "a cat", "--base", tmp_path)
    assert code == 2
    assert err.count("\n") == 1


def report_of(prompt: str):
    return count_tokens(tiny_tokenizer(77), prompt)


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("prompt", [LONG_PROMPT, "a cat", "A" * 3000, "word " * 10_000, "a" + "\n" * 500 + "b", ""])
def test_no_line_is_wider_than_the_screen(width, prompt):
    lines = picture("base", report_of(prompt), Screen(width, blocks=True, colour=False), words=True).splitlines()
    assert max(len(line) for line in lines) <= width
    assert sum("█" in line or "░" in line for line in lines) == 2


def test_a_bar_shows_the_share_that_is_read_in_two_colours_or_none():
    line = picture("x", report_of("cat " * 750), WIDE).splitlines()[1]
    assert (line.count("█"), line.count("░")) == (7, 65)
    assert picture("x", report_of("cat " * 76), WIDE).splitlines()[1].count("░") == 1
    coloured = picture("x", report_of("cat " * 100), Screen(100, blocks=True, colour=True))
    assert coloured.count("\x1b[32m") == 2
    assert coloured.count("\x1b[31m") == 1
    plain = picture("x", report_of("cat " * 100), Screen(100, blocks=False, colour=False))
    assert plain.isascii()
    assert "\x1b" not in plain
    assert "#--" in plain


@pytest.mark.parametrize(
    ("encoding", "tty", "no_color", "columns", "expected"),
    [
        ("utf-8", True, "", "100", Screen(100, blocks=True, colour=True)),
        ("UTF8", False, "", "20", Screen(40, blocks=True, colour=False)),
        ("utf-8", True, "1", "500", Screen(120, blocks=False, colour=False)),
        ("latin-1", True, "", "100", Screen(100, blocks=False, colour=False)),
    ],
)
def test_the_screen_is_that_of_standard_output(monkeypatch, encoding, tty, no_color, columns, expected):
    monkeypatch.setattr(sys, "stdout", SimpleNamespace(encoding=encoding, isatty=lambda: tty))
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("COLUMNS", columns)
    assert Screen.of_output() == expected


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--words",)])
def test_an_output_that_is_not_utf8_takes_every_prompt(models, monkeypatch, arguments):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    assert cli.main(["tokens", "a 猫 “cat”", "--encoder", str(models / "short"), *arguments]) == 0
    sys.stdout.flush()
    said = written.getvalue().decode("ascii")
    assert "short" in said
    if arguments == ("--json",):
        assert json.loads(said)["prompt"] == "a 猫 “cat”"
