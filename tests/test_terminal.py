"""What commands print: no output stops them, nothing that was made is lost, and standard input is a prompt."""

import io
import json
import os
import subprocess
import sys

import pytest
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline

from debias_sd import cli

ENCODINGS = ("ascii", "cp1252", "utf-16", "utf-8")
PROMPT = "A red star 🙂 – “noon”. 一只猫。"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    tiny_sd_pipeline().save_pretrained(folder / "base")
    tiny_encoder().save(folder / "long")
    save_clip_model(folder / "short")
    return folder


def words_of(models, command, out):
    """A command with its prompt in a file: the command line of a C locale cannot hold it."""
    words = [command, "--prompt-file", models / "prompt.txt"]
    (models / "prompt.txt").write_text(PROMPT, encoding="utf-8")
    if command == "tokens":
        return [*map(str, words), "--encoder", str(models / "long")]
    words += ["--base", models / "base", "--steps", 1, "--out", out, "--device", "cpu"]
    return [*map(str, words), *(["--encoder", "stretched"] if command == "generate" else [])]


class Narrow(io.TextIOWrapper):
    """Standard output of another encoding than UTF-8."""

    def __init__(self, encoding):
        super().__init__(io.BytesIO(), encoding=encoding, errors="strict")


@pytest.mark.parametrize(
    ("command", "json_too", "encoding"),
    [
        *(("tokens", json_too, encoding) for json_too in (False, True) for encoding in ENCODINGS),
        ("compare", False, "cp1252"),
        ("compare", True, "ascii"),
        ("generate", False, "ascii"),
    ],
)
def test_no_encoding_of_the_output_stops_a_command(models, tmp_path, monkeypatch, encoding, command, json_too):
    """Case 102."""
    out, err = Narrow(encoding), Narrow("ascii")
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert cli.main(words_of(models, command, tmp_path / "x.png") + ["--json"] * json_too) == 0
    assert command == "tokens" or (tmp_path / "x.png").stat().st_size > 100
    said = out.buffer.getvalue().decode(encoding)
    assert said.endswith("\n")
    if json_too:
        assert json.loads(said)["prompt"] == PROMPT  # whole, whatever the encoding


def run(arguments, *, code="", **options):
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONIO", "PYTHONUNB"))}
    module = ["-c", code] if code else ["-m", "debias_sd"]
    done = subprocess.run(
        [sys.executable, *module, *arguments], env=plain | options.pop("env", {}), check=False, timeout=120, **options
    )
    return done.returncode


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("channel", ["stdout", "stderr"])
def test_a_reader_that_leaves_ends_nothing(tmp_path, unbuffered, channel):
    """Case 102: `| head`. What is written after it goes nowhere, by print, by a progress bar, by a warning."""
    code = (
        "import pathlib, sys\nfrom debias_sd.commands import terminal\nterminal.open_terminal()\n"
        "for number in range(3): terminal.say('x' * 100_000); terminal.warn('y' * 100_000)\n"
        f"pathlib.Path({str(tmp_path / 'done')!r}).write_text(str(terminal.lost_output()))"
    )
    reader, writer = os.pipe()
    os.close(reader)
    other = "stderr" if channel == "stdout" else "stdout"
    with (tmp_path / "other").open("wb") as file:
        code = run([], code=code, env={"PYTHONUNBUFFERED": unbuffered}, **{channel: writer, other: file})
    os.close(writer)
    assert (code, (tmp_path / "done").read_text()) == (0, "None")
    assert (tmp_path / "other").stat().st_size == (300_003 if other == "stdout" else 3 * (100_000 + 21))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_is_full_is_told_at_the_end(tmp_path, unbuffered):
    """Case 102."""
    code = (
        "import sys\nfrom debias_sd import cli\n"
        "cli.COMMANDS['tokens'].run = lambda arguments: cli.COMMANDS['tokens'].say('x' * 9_999) or 0\n"
        "sys.exit(cli.main(['tokens', 'a']))"
    )
    with open("/dev/full", "wb") as full, (tmp_path / "err").open("wb") as err:
        assert run([], code=code, env={"PYTHONUNBUFFERED": unbuffered}, stdout=full, stderr=err) == 2
    sentence = "standard output cannot be written (No space left on device); give it another place."
    assert (tmp_path / "err").read_text() == f"debias-sd: error: {sentence}\n"


@pytest.mark.parametrize(
    "module", ["debias_sd.cli", "debias_sd.demo", "train_encoder.__main__", "train_unet.__main__", "app.__main__"]
)
def test_every_program_makes_its_output_safe_first(module, monkeypatch):
    """Case 102."""

    class First(Exception):
        pass

    def stop():
        raise First

    program = __import__(module, fromlist=["main"])
    monkeypatch.setattr(program, "open_terminal", stop)
    with pytest.raises(First):
        program.main([]) if module != "debias_sd.demo" else program.main()


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (PROMPT.encode() + b"\n", PROMPT),
        (b"\xef\xbb\xbf" + PROMPT.encode() + b"\r\n", PROMPT),
        (PROMPT.encode("utf-16"), PROMPT),
        (b"two\nlines", "two\nlines"),
        (b"", "error: the prompt is empty; write what the picture should show."),
        (b" \n", "error: the prompt is empty; write what the picture should show."),
        (b"\xff\x00", "error: standard input is not UTF-8 text"),
        (None, "error: standard input is closed"),
    ],
)
@pytest.mark.parametrize("place", [("-",), ("--prompt-file", "-")])
def test_a_dash_reads_standard_input(models, monkeypatch, capsys, content, read, place):
    """Case 126."""
    monkeypatch.setattr(sys, "stdin", None if content is None else io.TextIOWrapper(io.BytesIO(content)))
    code = cli.main(["tokens", *place, "--encoder", str(models / "long"), "--json"])
    out, err = capsys.readouterr()
    if read.startswith("error"):
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert read in err
    else:
        assert code == 0, err
        assert json.loads(out)["prompt"] == read


@pytest.mark.parametrize("command", ["compare", "generate"])
def test_a_dash_is_a_prompt_of_every_command(models, tmp_path, monkeypatch, capsys, command):
    """Case 126."""
    words = ["-", "--base", str(models / "base"), "--steps", "1", "--out", str(tmp_path / "x.png"), "--device", "cpu"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    assert cli.main([command, *words]) == 2
    assert "standard input is not UTF-8" in capsys.readouterr().err
