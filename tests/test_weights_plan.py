"""What `scripts/weights.py` plans, in which order, with which settings, and what it installs; nothing is trained."""

import json
import sys
from pathlib import Path

import pytest
from test_weights import NAMES, ROOT, check_folder, digests, size_of
from tiny_world import save_tiny_clip, tiny_pipeline

from train_encoder.settings import parse_arguments as read_encoder_settings
from train_unet.settings import parse_arguments as read_unet_settings


@pytest.fixture
def script(monkeypatch):
    """`scripts/weights.py` as a module."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import weights

    return weights


def test_runs_inside_the_checkout_are_named_from_it(script, monkeypatch):
    monkeypatch.chdir(ROOT / "tests")
    # No path of this machine in the provenance of what ships.
    assert script.inside_root(Path("../runs")) == Path("runs")
    assert script.inside_root(ROOT / "runs") == Path("runs")
    assert script.inside_root(Path("/elsewhere/runs")) == Path("/elsewhere/runs")
    command = script.encoder_command("long-clip", Path("runs/s0"), seed=0, quick=False)
    assert command[3:7] == [
        "--config",
        "train_encoder/configs/shapes_long_clip.yaml",
        "--output_dir",
        "runs/s0/long-clip",
    ]


@pytest.mark.parametrize("quick", [True, False])
def test_the_chain_is_planned_in_order_and_what_it_makes_is_installed(script, quick, tmp_path, monkeypatch, capsys):
    """All of it but the training itself, whose place tiny models take; tests/test_weights.py trains."""
    folder, target = tmp_path / ("quick" if quick else "s3"), tmp_path / "shipped"
    stages = []

    def train(jobs):
        stages.append([[settings_of(command) for command in job] for job in jobs])
        for module, config in (one for job in stages[-1] for one in job):
            if module == "train_encoder":
                make_encoder(Path(config.output_dir), window=77 if config.recipe == "short-only" else 248)
            else:
                part = "vae" if config.vae_only else "pipeline"
                tiny_pipeline().save_pretrained(Path(config.output_dir) / part)

    monkeypatch.setattr(script, "run_together", train)
    monkeypatch.setattr(script, "WEIGHTS", target)
    monkeypatch.setattr(sys, "argv", ["weights.py", "--runs", str(tmp_path), "--seed", "3", *["--quick"] * quick])
    script.main()
    modules = [[[module for module, _ in job] for job in jobs] for jobs in stages]
    encoder, unet = "train_encoder", "train_unet"
    assert modules == [[[encoder], [unet]], [[encoder, encoder], [unet]]]
    base, vae, *recipes, drawing = everything = [config for jobs in stages for job in jobs for _, config in job]
    assert [config.recipe for config in (base, *recipes)] == ["short-only", "long-clip", "debias"]
    assert [Path(config.output_dir) for config in (base, *recipes)] == [folder / name for name in NAMES[:3]]
    assert {config.pretrained_model_name_or_path for config in recipes} == {base.output_dir}
    assert {config.resume_from_checkpoint for config in (base, *recipes)} == {"latest"}
    assert [config.vae_only for config in (vae, drawing)] == [True, False]
    assert {config.output_dir for config in (vae, drawing)} == {str(folder / "stable-diffusion")}
    assert drawing.text_encoder == base.output_dir
    assert {config.seed for config in everything} == {3}
    steps = {config.max_train_steps for config in everything}
    assert steps == {4} if quick else min(steps) > 100
    weights = folder / "weights" if quick else target
    assert sorted(path.name for path in weights.iterdir()) == sorted(NAMES)
    for name in NAMES[:3]:
        check_folder(weights / name)
    said = capsys.readouterr().out
    assert f"StableDiffusionPipeline 248, picture (48, 48), {size_of(weights) / 1e6:.1f} MB in {weights}" in said
    script.main()
    assert stages[2:] == [[[], []], [[], []]]
    assert capsys.readouterr().out.count("is there; delete it to make it again") == 5


def settings_of(command: list[str]) -> tuple[str, object]:
    """The module that a command runs, and the settings that it reads from the command line."""
    assert command[:2] == [sys.executable, "-m"]
    read = {"train_encoder": read_encoder_settings, "train_unet": read_unet_settings}[command[2]]
    return command[2], read([str(ROOT / part) if part.endswith(".yaml") else part for part in command[3:]])


def make_encoder(folder: Path, *, window: int) -> None:
    """An encoder folder as training leaves it."""
    save_tiny_clip(folder, window=window)
    (folder / "provenance.json").write_text(json.dumps({"sha256": digests(folder)}))


def test_jobs_run_side_by_side_each_list_in_order_and_end_with_the_first_that_fails(script, tmp_path):
    def says(word):
        return ["sh", "-c", f"echo {word} >> {tmp_path}/said"]

    script.run_together([[says("one"), says("two")], [["sleep", "0"]]])
    assert (tmp_path / "said").read_text() == "one\ntwo\n"
    with pytest.raises(SystemExit, match=r"^weights: -c exit 3 ended with exit code 3; see above\.$"):
        script.run_together([[["sh", "-c", "exit 3"], says("three")], [["sleep", "500"]]])
    assert (tmp_path / "said").read_text() == "one\ntwo\n"
