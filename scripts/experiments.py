"""Train the encoders that `docs/results.md` compares and measure each: `make results`.

    python scripts/experiments.py [--seeds 0 1 2] [--runs runs] [--reports results] [--jobs 2]

For each seed: the base, then from it both recipes with each weight of the short caption (0.1, the paper's, and 0.5,
Long-CLIP's equal parts). For the pictures, which need the one base that the UNet was trained on (seed 0), two more
fine-tuning seeds of each recipe. Every step resumes, and is skipped when its report is there; reports are JSON files
that `scripts/results.py` turns into `docs/results.md`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from weights import training_environment

ROOT = Path(__file__).resolve().parents[1]
VARIANTS = {  # name -> (recipe, weight of the short caption)
    "long-clip-l0.5": ("long-clip", 0.5),
    "long-clip-l0.1": ("long-clip", 0.1),
    "debias-l0.1": ("debias", 0.1),
    "debias-l0.5": ("debias", 0.5),
}
SHIPPED = {"long-clip-l0.5": "long-clip", "debias-l0.1": "debias"}  # the folders that `make weights` makes
FINE_TUNING_SEEDS = (1, 2)


@dataclass(frozen=True)
class Encoder:
    """One trained encoder: its name in reports, its folder, and how it is trained."""

    name: str
    folder: Path
    base: Path | None
    recipe: str
    short_weight: float | None
    seed: int

    def train_command(self) -> list[str]:
        config = f"train_encoder/configs/shapes_{self.recipe.replace('-', '_')}.yaml"
        command = ["-m", "train_encoder", "--config", config, "--output_dir", str(self.folder)]
        command += ["--seed", str(self.seed), "--resume_from_checkpoint", "latest"]
        if self.base is not None:
            command += ["--pretrained_model_name_or_path", str(self.base), "--short_weight", str(self.short_weight)]
        return command


def encoders_of_seed(seed: int, runs: Path) -> list[Encoder]:
    """The base of a seed first, then what is fine-tuned from it."""
    base = runs / f"s{seed}" / "base"
    found = [Encoder(f"base-s{seed}", base, None, "base", None, seed)]
    for variant, (recipe, weight) in VARIANTS.items():
        folder = runs / f"s{seed}" / SHIPPED.get(variant, variant)
        found.append(Encoder(f"{variant}-s{seed}", folder, base, recipe, weight, seed))
    return found


def fine_tuning_seeds(runs: Path) -> list[Encoder]:
    """Both shipped recipes from the base of seed 0 with other fine-tuning seeds, for the pictures."""
    base = runs / "s0" / "base"
    return [
        Encoder(f"{variant}-f{seed}", runs / "s0" / f"{variant}-f{seed}", base, *VARIANTS[variant], seed)
        for seed in FINE_TUNING_SEEDS
        for variant in SHIPPED
    ]


def call(arguments: list[str], log: Path) -> None:
    """Run Python with `arguments`, one thread, output to `log`; a failure stops the whole script."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        code = subprocess.run(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=training_environment(),
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if code:
        raise SystemExit(f"experiments: python {' '.join(arguments)} ended with exit code {code}; see {log}.")


def train_and_measure(encoder: Encoder, reports: Path) -> None:
    """Train `encoder` unless its folder is finished, then write its retrieval and attention reports if missing."""
    log = encoder.folder.with_name(encoder.folder.name + ".log")
    if not (encoder.folder / "provenance.json").exists():
        call(encoder.train_command(), log)
    for kind in ("retrieval", "attention"):
        report = reports / f"{kind}-{encoder.name}.json"
        if not report.exists():
            call(evaluate_command(kind, [encoder], report), log)
    print(f"{encoder.name}: done", flush=True)


def evaluate_command(kind: str, encoders: list[Encoder], report: Path) -> list[str]:
    named = [f"{encoder.name}={encoder.folder}" for encoder in encoders]
    return ["-m", "debias_sd", "evaluate", kind, "--encoder", *named, "--out", str(report)]


def measure_pictures(runs: Path, reports: Path) -> None:
    """Late-detail scores of all encoders that start from the base of seed 0, in the UNet of that base."""
    base = runs / "s0" / "stable-diffusion" / "pipeline"
    shipped = [e for e in encoders_of_seed(0, runs) if e.name in {f"{v}-s0" for v in SHIPPED}]
    for encoder in [*shipped, *fine_tuning_seeds(runs)]:
        report = reports / f"fidelity-{encoder.name}.json"
        if not report.exists():
            arguments = [*evaluate_command("fidelity", [encoder], report), "--base", str(base)]
            call(arguments, runs / "fidelity.log")
        print(f"pictures of {encoder.name}: done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--reports", type=Path, default=Path("results"))
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side, one thread each")
    options = parser.parse_args()
    runs, reports = options.runs.absolute(), options.reports.absolute()
    reports.mkdir(parents=True, exist_ok=True)
    groups = [encoders_of_seed(seed, runs) for seed in options.seeds]
    with ThreadPoolExecutor(options.jobs) as pool:
        for bases_first in ([group[0] for group in groups], [e for group in groups for e in group[1:]]):
            more = fine_tuning_seeds(runs) if bases_first[0].base is not None and 0 in options.seeds else []
            for done in pool.map(lambda encoder: train_and_measure(encoder, reports), [*bases_first, *more]):
                assert done is None
    if 0 in options.seeds:
        measure_pictures(runs, reports)


if __name__ == "__main__":
    main()
