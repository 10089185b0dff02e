"""`scripts/weights.py` from nothing to a picture at reduced size, the shipped weights, and the list of experiments."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from safetensors import safe_open

from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import WEIGHTS
from debias_sd.shapes.render import judge
from debias_sd.shapes.scene import Thing
from train_encoder.settings import parse_arguments

ROOT = Path(__file__).parent.parent
NAMES = ("base", "long-clip", "debias", "stable-diffusion")
SHIPPED_LIMIT = 25_000_000  # bytes

pytestmark = pytest.mark.timeout(1500)  # under a minute on two idle cores, many on a machine that trains beside it
shipped = pytest.mark.skipif(not WEIGHTS.is_dir(), reason="debias_sd/weights is not there; make weights makes it")


def run_script(name: str, *arguments: str, folder: Path) -> str:
    """Run a script from `folder`, as a user who is elsewhere would; return its output."""
    command = [sys.executable, str(ROOT / "scripts" / name), *arguments]
    settings = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests(folder: Path) -> dict[str, str]:
    """The hash of every file of weights below `folder`, by its path."""
    return {str(path.relative_to(folder)): digest(path) for path in sorted(folder.rglob("*.safetensors"))}


def dtypes(path: Path) -> set[str]:
    with safe_open(path, framework="pt") as file:
        return {file.get_slice(name).get_dtype() for name in file.keys()}


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")} if folder.is_dir() else {}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of the weights that the quick chain made, and what it said; `--runs` is relative to the caller."""
    folder = tmp_path_factory.mktemp("elsewhere")
    kept = [WEIGHTS, ROOT / "runs" / "quick"]
    before = [listing(place) for place in kept]
    said = run_script("weights.py", "--quick", "--runs", "runs", folder=folder)
    assert [listing(place) for place in kept] == before
    return folder / "runs" / "quick" / "weights", said


@pytest.mark.slow
def test_the_quick_chain_makes_every_model_and_draws(made):
    weights, said = made
    assert sorted(path.name for path in weights.iterdir()) == sorted(NAMES)
    assert f"StableDiffusionPipeline 248, picture (48, 48), {size_of(weights) / 1e6:.1f} MB in {weights}" in said


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_models_of_the_shipped_size_stay_below_the_limit(made):
    assert size_of(made[0]) < SHIPPED_LIMIT  # the quick chain takes fewer steps with the same models


@pytest.mark.slow
def test_the_pipeline_is_a_stock_folder_that_plain_diffusers_loads_and_draws_with(made):
    pipe = StableDiffusionPipeline.from_pretrained(made[0] / "stable-diffusion")  # no dtype: float32 throughout
    pipe.set_progress_bar_config(disable=True)
    assert {part.dtype for part in (pipe.unet, pipe.vae, pipe.text_encoder)} == {torch.float32}
    assert pipe.tokenizer.model_max_length == 77
    image = pipe("small red star top left", num_inference_steps=2, output_type="np").images[0]
    assert image.shape == (48, 48, 3)
    assert np.isfinite(image).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "positions"), [("base", 77), ("long-clip", 248), ("debias", 248)])
def test_an_encoder_has_its_window_and_its_recipe(made, name, positions):
    encoder = TextEncoder.load(made[0] / name)
    assert (encoder.positions, encoder.tokenizer.model_max_length) == (positions, positions)
    recipe = encoder.provenance["config"]["recipe"]
    assert recipe == ("short-only" if name == "base" else name)
    assert encoder.model.dtype == torch.float16  # as in the file; a pipeline brings it to its own


@pytest.mark.slow
def test_the_unet_was_conditioned_on_the_base_that_is_made_beside_it(made):
    in_pipeline = made[0] / "stable-diffusion" / "text_encoder" / "model.safetensors"
    base = made[0] / "base" / "model.safetensors"
    with safe_open(in_pipeline, framework="pt") as own, safe_open(base, framework="pt") as other:
        for name in own.keys():
            assert torch.equal(own.get_tensor(name), other.get_tensor(f"text_model.{name.removeprefix('text_model.')}"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_made_weights_are_float16_and_their_provenance_holds(made, name):
    check_folder(made[0] / name)
    facts = json.loads((made[0] / name / "provenance.json").read_text())
    assert facts.keys() >= {"command", "config", "versions", "sha256"}
    assert facts["config"]["seed"] == 0
    assert (facts.get("commit") or facts["git_commit"])[:40].isalnum()


@pytest.mark.slow
def test_a_second_call_trains_nothing_and_leaves_the_same_weights(made):
    weights, _ = made
    before = digests(weights)
    said = run_script("weights.py", "--quick", "--runs", str(weights.parents[1]), folder=ROOT)  # an absolute path now
    assert digests(weights) == before
    results = ("base/provenance.json", "long-clip/provenance.json", "debias/provenance.json")
    for result in (*results, "stable-diffusion/vae", "stable-diffusion/pipeline"):
        assert f"{weights.parent / result} is there; delete it to make it again" in said
    assert "encoder written" not in said


def check_folder(folder: Path) -> None:
    """Weights in float16, and a hash in the provenance for each file of them that is the file's."""
    facts = json.loads((folder / "provenance.json").read_text())
    assert digests(folder) == facts["sha256"]
    assert digests(folder)
    assert {dtype for path in folder.rglob("*.safetensors") for dtype in dtypes(path)} <= {"F16", "I64"}


@shipped
def test_the_shipped_weights_are_small_enough_for_a_package():
    assert size_of(WEIGHTS) < SHIPPED_LIMIT


@shipped
def test_the_shipped_pipeline_draws_what_it_is_told_with_plain_diffusers():
    pipe = StableDiffusionPipeline.from_pretrained(WEIGHTS / "stable-diffusion")
    pipe.set_progress_bar_config(disable=True)
    things = [Thing(0, "red", "star", "large"), Thing(8, "blue", "ring", "large")]
    prompt = "large red star top left, large blue ring bottom right, white background"
    seeds = [torch.Generator().manual_seed(seed) for seed in range(4)]
    images = pipe([prompt] * 4, generator=seeds, num_inference_steps=20, guidance_scale=2, output_type="np").images
    drawn = [verdict.drawn for image in images for verdict in judge(np.rint(255 * image).astype(np.uint8), things)]
    assert sum(drawn) >= 6  # of 8; about one in twenty is missed


@shipped
@pytest.mark.parametrize("name", NAMES)
def test_shipped_weights_are_float16_and_their_provenance_holds(name):
    check_folder(WEIGHTS / name)
    assert str(Path.home()) not in (WEIGHTS / name / "provenance.json").read_text()
    assert str(ROOT) not in (WEIGHTS / name / "provenance.json").read_text()


@shipped
@pytest.mark.parametrize(
    ("folder", "window"), [("stable-diffusion/tokenizer", 77), ("base", 77), ("long-clip", 248), ("debias", 248)]
)
def test_a_shipped_tokenizer_has_the_window_of_its_encoder(folder, window):
    assert json.loads((WEIGHTS / folder / "tokenizer_config.json").read_text())["model_max_length"] == window


@pytest.fixture(scope="module")
def experiments():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import experiments

        yield experiments
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@pytest.mark.parametrize("script", ["weights.py", "experiments.py"])
def test_a_script_says_how_it_is_used(script, tmp_path):
    assert run_script(script, "--help", folder=tmp_path).startswith(f"usage: {script} [-h]")
    assert not list(tmp_path.iterdir())


def test_the_experiments_have_three_seeds_and_names_of_their_own(experiments):
    runs = Path("runs")
    every = [*experiments.bases(0, runs), *experiments.fine_tuned(0, runs)]
    seeds = {}
    for encoder in every:
        seeds.setdefault(encoder.name.rsplit("-", 1)[0], set()).add(encoder.seed)
    for variant in ("base", "long-clip-l0.5", "long-clip-l0.1", "debias-l0.1", "debias-l0.5"):
        assert len(seeds[variant]) >= 3
    assert len({encoder.name for encoder in every}) == len({encoder.folder for encoder in every}) == len(every)


def test_an_experiments_name_says_how_it_is_trained(experiments):
    for encoder in experiments.fine_tuned(0, Path("runs")):
        command = encoder.train_command()
        assert command[:2] == ["-m", "train_encoder"]
        config = parse_arguments([str(ROOT / part) if part.endswith(".yaml") else part for part in command[2:]])
        assert encoder.name.startswith(f"{config.recipe}-")
        assert f"-l{config.short_weight}-" in encoder.name
        assert (config.stay_close_weight == 0) == ("-free-" in encoder.name)
        assert (config.late_sentences_weight > 0) == ("-sentences-" in encoder.name)
        assert config.pretrained_model_name_or_path == "runs/s0/base"
        assert (config.output_dir, config.seed) == (str(encoder.folder), encoder.seed)


def test_what_ships_is_what_the_experiments_measure(experiments):
    """The folders of `make weights` are found again, trained by the same settings: nothing is trained twice."""
    from weights import encoder_command

    def config_of(command):
        options = command[command.index("train_encoder") + 1 :]
        return parse_arguments([str(ROOT / part) if part.endswith(".yaml") else part for part in options])

    found = {
        encoder.folder: encoder for encoder in [*experiments.bases(0, Path("r")), *experiments.fine_tuned(0, Path("r"))]
    }
    for name in ("base", "long-clip", "debias"):
        wanted = encoder_command(name, Path("r/s0"), seed=0, quick=False)
        assert config_of(found[Path("r/s0") / name].train_command()) == config_of(wanted)
