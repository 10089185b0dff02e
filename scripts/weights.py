"""Re-make every shipped weight from nothing: `make weights`, or `make weights-quick` for the chain at reduced size.

    python scripts/weights.py [--quick] [--seed 0] [--runs runs] [--no-install]

Two jobs run at a time, one thread each: the base encoder beside the VAE, then the two recipes beside the UNet.
Everything resumes where it stopped and what is finished is skipped, so the command can be killed and called again.
Finished models are copied to `debias_sd/weights` in float16 with their provenance; `--quick` leaves them in its own
folder and checks that they load.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEIGHTS = ROOT / "debias_sd" / "weights"
RECIPES = ("long-clip", "debias")
QUICK_ENCODER = ["--max_train_steps=4", "--lr_warmup_steps=1", "--train_batch_size=8", "--components=4"]
QUICK_UNET = {
    "vae_train_steps": 4,
    "decoder_train_steps": 2,
    "vae_train_batch_size": 4,
    "max_train_steps": 4,
    "train_batch_size": 4,
    "lr_warmup_steps": 2,
    "scenes_per_count": 4,
    "checkpointing_steps": 4,
    "validation_prompts": 1,
}


def inside_root(path: Path) -> Path:
    """`path` as seen from this checkout, where all commands run: relative if inside, for provenance to be read."""
    path = path.resolve()
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


def missing(commands: dict[Path, list[str]]) -> list[list[str]]:
    """The commands whose result, a finished folder, is not there yet."""
    for result in commands:
        if (ROOT / result).exists():
            print(f"{result} is there; delete it to make it again", flush=True)
    return [command for result, command in commands.items() if not (ROOT / result).exists()]


def encoder_command(name: str, folder: Path, *, seed: int, quick: bool) -> list[str]:
    """The command line that trains encoder `name` into `folder`/`name`."""
    command = [sys.executable, "-m", "train_encoder", "--config", f"train_encoder/configs/shapes_{name}.yaml"]
    command[-1] = command[-1].replace("long-clip", "long_clip")
    command += ["--output_dir", str(folder / name), "--seed", str(seed), "--resume_from_checkpoint", "latest"]
    if name != "base":
        command += ["--pretrained_model_name_or_path", str(folder / "base")]
    return [*command, *QUICK_ENCODER] if quick else command


def unet_command(folder: Path, *, seed: int, quick: bool, vae_only: bool) -> list[str]:
    """The command line that trains the VAE, or the VAE and the UNet, into `folder`/stable-diffusion."""
    command = [sys.executable, "-m", "train_unet", "--config", "train_unet/configs/shapes.yaml", "--seed", str(seed)]
    command += ["--text_encoder", str(folder / "base"), "--output_dir", str(folder / "stable-diffusion")]
    command += ["--vae_only", "true"] if vae_only else []
    options = [part for name, value in QUICK_UNET.items() for part in (f"--{name}", str(value))]
    return [*command, *options] if quick else command


def training_environment() -> dict[str, str]:
    """One thread a job, no network, and freed memory kept: glibc would map every large tensor anew, a third slower."""
    keep = str(1 << 33)
    memory = {"MALLOC_MMAP_THRESHOLD_": keep, "MALLOC_TRIM_THRESHOLD_": keep, "MALLOC_TOP_PAD_": str(1 << 28)}
    return {"OMP_NUM_THREADS": "1"} | memory | os.environ | {"HF_HUB_OFFLINE": "1"}


def run_together(jobs: list[list[list[str]]]) -> None:
    """Run lists of commands side by side, each list in order; stop all when one fails."""
    environment = training_environment()
    waiting = [list(job) for job in jobs]
    running: dict[int, subprocess.Popen] = {}
    while any(waiting) or running:
        for lane, commands in enumerate(waiting):
            if lane not in running and commands:
                running[lane] = subprocess.Popen(commands.pop(0), cwd=ROOT, env=environment)
        for lane, process in list(running.items()):
            try:
                code = process.wait(timeout=1)
            except subprocess.TimeoutExpired:
                continue
            del running[lane]
            if code:
                for other in running.values():
                    other.terminate()
                for other in running.values():
                    other.wait()  # a second call must not meet it
                raise SystemExit(f"weights: {' '.join(process.args[1:])} ended with exit code {code}; see above.")


def install_encoder(source: Path, target: Path) -> None:
    """Copy an encoder folder in float16, with its provenance brought up to date; replace an older one when complete."""
    from safetensors.torch import load_file, save_file

    from debias_sd.run_state import check_finite
    from train_unet.run import put_in_place

    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    skip = ("model.safetensors", "provenance.json", "train_log.jsonl", "README.md")
    for file in source.iterdir():
        if file.is_file() and file.name not in skip:
            shutil.copy2(file, temporary / file.name)
    tensors = {
        key: t.half() if t.is_floating_point() else t for key, t in load_file(source / "model.safetensors").items()
    }
    check_finite(tensors, what=f"{target.name} is not installed: in float16 it", advice="train it anew")
    save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((temporary / "config.json").read_text())
    for part in (config, config["text_config"], config["vision_config"]):
        part["dtype"] = "float32"  # what transformers loads the float16 file in when nobody says otherwise
    (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    facts = json.loads((source / "provenance.json").read_text())
    digest = hashlib.sha256((temporary / "model.safetensors").read_bytes()).hexdigest()
    facts |= {"dtype": "float16", "sha256": {"model.safetensors": digest}, "sha256_as_trained": facts["sha256"]}
    (temporary / "provenance.json").write_text(json.dumps(facts, indent=2) + "\n")
    put_in_place(temporary, target)


def install(folder: Path, weights: Path) -> None:
    """Copy the finished models of `folder` to `weights`."""
    from train_unet.run import put_in_place

    for name in ("base", *RECIPES):
        install_encoder(folder / name, weights / name)
    target = weights / "stable-diffusion"
    temporary = target.with_name(target.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.copytree(folder / "stable-diffusion" / "pipeline", temporary)
    put_in_place(temporary, target)


def check(weights: Path) -> None:
    """Load what was made as a user would, and draw one picture."""
    from debias_sd import load_debias_pipeline

    pipe = load_debias_pipeline(str(weights / "stable-diffusion"), encoder=str(weights / "debias"))
    image = pipe("a small red star top left", num_inference_steps=2).images[0]
    size = sum(file.stat().st_size for file in weights.rglob("*") if file.is_file()) / 1e6
    print(f"{type(pipe).__name__} {pipe.tokenizer.model_max_length}, picture {image.size}, {size:.1f} MB in {weights}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the whole chain at reduced size, not installed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", default="runs", help="folder for states and logs")
    parser.add_argument("--no-install", action="store_true", help="leave debias_sd/weights as it is")
    options = parser.parse_args()
    folder = inside_root(Path(options.runs)) / ("quick" if options.quick else f"s{options.seed}")
    shared = {"seed": options.seed, "quick": options.quick}
    encoders = {folder / name / "provenance.json": encoder_command(name, folder, **shared) for name in RECIPES}
    base = {folder / "base" / "provenance.json": encoder_command("base", folder, **shared)}
    vae = {folder / "stable-diffusion" / "vae": unet_command(folder, **shared, vae_only=True)}
    unet = {folder / "stable-diffusion" / "pipeline": unet_command(folder, **shared, vae_only=False)}
    run_together([missing(base), missing(vae)])
    run_together([missing(encoders), missing(unet)])
    sys.path.insert(0, str(ROOT))
    folder = ROOT / folder
    weights = folder / "weights" if options.quick or options.no_install else WEIGHTS
    install(folder, weights)
    check(weights)


if __name__ == "__main__":
    main()
