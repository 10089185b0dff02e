"""What README.md and the guides tell a user to type works: every bash command and every python block is run.

Commands that take hours are run to their `--help`; training runs at a few steps; paths under runs/ and hub ids become
tiny models. A command that this file does not know how to run is a failure, as is a document without any.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from run_script import run_script
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_checkpoints import long_clip, tiny_open_clip
from tiny_siglip import make_siglip
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd.cli import build_parser, main
from debias_sd.encoder_folder import EMBEDDED, WEIGHTS

ROOT = Path(__file__).parent.parent
DOCUMENTS = ("README.md", "docs/training.md", "docs/evaluation.md")  # tests/test_prompts_document.py runs prompts.md
EMBEDDED_MISSING = not (WEIGHTS / "stable-diffusion").is_dir()
FEW_STEPS = ("--max_train_steps", "2", "--lr_warmup_steps", "1", "--checkpointing_steps", "0")


def blocks_of(document: str, language: str) -> list[str]:
    """Return the fenced blocks of a language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands_of(document: str) -> list[str]:
    """Return the bash commands of a document, one a line, continued lines joined, comments dropped."""
    lines = "\n".join(blocks_of(document, "bash")).replace("\\\n", " ").splitlines()
    return [line for line in (" ".join(shlex.split(line, comments=True)) and line for line in lines) if line]


COMMANDS = [(document, command) for document in DOCUMENTS for command in commands_of(document)]
PYTHON_BLOCKS = blocks_of("README.md", "python")


def of_kind(*starts: str) -> list[object]:
    """Return the commands that begin with one of `starts`, as parameters."""
    found = [(where, command) for where, command in COMMANDS if command.startswith(starts)]
    return [pytest.param(command, id=f"{where}: {command[:60]}") for where, command in found]


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    settings = {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        command, cwd=folder, env=os.environ | settings, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_commands_and_all_are_of_a_kind_that_is_run_here(document):
    commands = commands_of(document)
    assert commands
    known = r"make [a-z-]+\b|debias-sd |accelerate launch .*-m (train_|debias_sd )|python s"
    unknown = [c for c in commands if not re.match(known, c)]
    assert not unknown, f"teach tests/test_readme.py to run: {unknown}"


def test_the_readme_shows_the_two_commands_and_three_lines_of_use_first():
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40]
    assert [line.split()[:2] for line in first_screen if line.startswith("make ")] == [
        ["make", "demo"],
        ["make", "test"],
    ]
    use = [line for line in PYTHON_BLOCKS[0].splitlines() if line.strip()]
    assert len(use) == 3


@pytest.mark.parametrize("command", [c for c in of_kind("make ") if "make demo" not in c.id])
def test_a_make_target_exists_and_what_it_runs_starts(command):
    target = shlex.split(command, comments=True)[1]
    # MAKEFLAGS of the make that runs these tests must not reach the one under test.
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    dry = ["make", "--no-print-directory", "--dry-run", target]
    shown = subprocess.run(dry, cwd=ROOT, env=plain, capture_output=True, text=True, check=True).stdout
    _, *arguments = shlex.split(shown.splitlines()[-1])
    assert "usage" in run([sys.executable, *arguments, "--help"], ROOT).stdout.lower()


def test_the_demo_draws_or_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, error = run_script(ROOT / "debias_sd" / "demo.py"), capsys.readouterr().err
    if EMBEDDED_MISSING:
        assert code == 2
        assert error.strip().splitlines()[-1].startswith("demo: error: the embedded model ")
    else:
        assert code == 0, error
        assert [path.name for path in tmp_path.iterdir()] == ["demo.png"]


@pytest.mark.parametrize("command", of_kind("python scripts/"))
def test_a_script_knows_its_options(command):
    _, script, *arguments = shlex.split(command, comments=True)
    shown = run([sys.executable, script, "--help"], ROOT).stdout
    assert all(option in shown for option in arguments if option.startswith("--"))


@pytest.mark.parametrize("command", of_kind("debias-sd "))
def test_a_command_line_is_understood(command):
    arguments = build_parser().parse_args(shlex.split(command, comments=True)[1:])
    assert callable(arguments.run)


@pytest.mark.skipif(EMBEDDED_MISSING, reason="debias_sd/weights is not made; run make weights")
@pytest.mark.parametrize("command", of_kind("debias-sd generate", "debias-sd compare", "debias-sd tokens"))
def test_a_command_of_the_embedded_models_runs(command, tmp_path, monkeypatch, capsys):
    arguments = shlex.split(command, comments=True)[1:]
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0
    said = capsys.readouterr().out
    if "--out" in arguments:
        (picture,) = tmp_path.iterdir()
        assert picture.name == arguments[arguments.index("--out") + 1]
        with Image.open(picture) as image:
            assert min(image.size) >= 48
    else:
        assert all(name in said for name in EMBEDDED)


@pytest.mark.parametrize("command", of_kind("debias-sd convert", "debias-sd export"))
def test_a_checkpoint_command_writes_what_it_names(command, tmp_path, monkeypatch):
    _, verb, source, target, *_ = shlex.split(command, comments=True)
    if verb == "export" and EMBEDDED_MISSING:
        pytest.skip("debias_sd/weights is not made; run make weights")
    monkeypatch.chdir(tmp_path)
    if verb == "convert":
        torch.save(long_clip(tiny_open_clip(length=248, quick_gelu=True)), source)
    assert main(shlex.split(command, comments=True)[1:]) == 0
    assert any(Path(target).glob("*.safetensors"))


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Path:
    """Tiny models of the embedded world: a base of 77 positions, encoders of 248, a pipeline; and pairs on disk."""
    folder = tmp_path_factory.mktemp("world")
    save_tiny_clip(folder / "base")
    for name in ("long-clip", "debias"):
        save_tiny_clip(folder / name, window=248)
    tiny_pipeline().save_pretrained(folder / "stable-diffusion" / "pipeline")
    save_clip_model(folder / "clip")
    make_siglip(folder / "siglip", "siglip2")
    for number in range(16):
        Image.new("RGB", (40, 30), (15 * number, 99, 99)).save(folder / f"{number}.png")
    lines = [{"file_name": f"{n}.png", "text": f"A plain picture. It has colour {n}. It is flat."} for n in range(16)]
    (folder / "metadata.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


# That of an evaluation is run by tests/test_cli_evaluate_document.py.
TRAINING = [p for p in of_kind("accelerate launch") if "-m train_encoder" in p.values[0]]


@pytest.mark.slow
@pytest.mark.parametrize("command", TRAINING)
def test_a_training_command_trains(command, world, tmp_path):
    arguments = re.sub(r"--num_processes \d+", "--num_processes 2", command.split(" #")[0]).split()[2:]
    own_data, family = "--train_data" in arguments, "siglip" if "siglip" in command else "clip"
    batch = "4" if "--multi_gpu" in arguments else "8"
    arguments += [*FEW_STEPS, "--train_batch_size", batch, "--output_dir", str(tmp_path / "run")]
    arguments += ["--components", "4", "--dataloader_num_workers", "0"]
    if own_data:
        arguments += ["--train_data", str(world / "metadata.jsonl"), "--pretrained_model_name_or_path"]
        arguments += [str(world / family)]
    elif "shapes_base.yaml" not in command:
        arguments += ["--pretrained_model_name_or_path", str(world / "base")]
    run([sys.executable, "-m", "accelerate.commands.launch", *arguments], ROOT)
    story = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert story["final"]["step"] == 2
    assert story["processes"] == (2 if "--multi_gpu" in arguments else 1)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == family


# Those on sets are run by tests/test_cli_evaluate_document.py.
ON_SCENES = [p for p in of_kind("debias-sd evaluate") if not re.search(r"--data|evaluate paper", p.values[0])]


@pytest.mark.parametrize("command", ON_SCENES)
def test_an_evaluation_writes_its_report(command, world, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    local = re.sub(r"(?<==)(runs/s0|debias_sd/weights)/", f"{world}/", command).replace("runs/s0/", f"{world}/")
    arguments = [*shlex.split(local, comments=True)[1:], "--count", "8"]
    kind = arguments[1]
    if kind == "fidelity":
        arguments += ["--steps", "1", "--base", str(world / "stable-diffusion" / "pipeline")]
    assert main(arguments) == 0
    report = json.loads(Path(arguments[arguments.index("--out") + 1]).read_text())
    named = tuple(re.findall(r"--encoder (.+?)=", command))
    assert (report["kind"], report["settings"]["count"]) == (kind, 8)
    assert report["encoders"]
    assert all(name.startswith(named) for name in report["encoders"])


@pytest.mark.skipif(EMBEDDED_MISSING, reason="debias_sd/weights is not made; run make weights")
def test_the_three_lines_of_use_draw_a_picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(PYTHON_BLOCKS[0], names)
    assert (type(names["pipe"]).__name__, names["pipe"].tokenizer.model_max_length) == ("StableDiffusionPipeline", 248)
    assert names["image"].size == (48, 48)


@pytest.mark.parametrize("block", PYTHON_BLOCKS[1:], ids=lambda block: block.splitlines()[0][:60])
def test_a_block_for_real_models_runs_on_tiny_ones(block, tmp_path):
    tiny_sd_pipeline().save_pretrained(tmp_path / "base")
    tiny_encoder().save(tmp_path / "encoder")
    names = {"stable-diffusion-v1-5/stable-diffusion-v1-5": "base", "path/or/hub-id": "encoder"}
    assert any(name in block for name in names)
    for name, folder in names.items():
        block = block.replace(f'"{name}"', repr(str(tmp_path / folder)))
    block = block.replace(").images[0]", ", num_inference_steps=2).images[0]")
    prompt = "A red boat lies at the pier."
    names = {"prompt": prompt, "very_long_prompt": 60 * (prompt + " A gull sits on its mast. ")}
    exec(block, names)
    assert names["image"].size == (64, 64)


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_link_leads_to_a_file(document):
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", (ROOT / document).read_text(encoding="utf-8"))
    measured = {"demo.png", "results.md"} if EMBEDDED_MISSING else set()  # made from the weights
    names = [name for name in targets if Path(name).name not in measured]
    missing = [name for name in names if not ((ROOT / document).parent / name).exists()]
    assert not missing


def test_the_tables_of_training_are_those_of_its_settings(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run_script(ROOT / "scripts" / "settings_table.py", "--check") == 0
