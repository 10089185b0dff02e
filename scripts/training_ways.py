"""Train the embedded recipes in other ways than the reported encoders, and measure each: quality, time and memory.

    python scripts/training_ways.py [--seed 0] [--runs runs] [--reports results/training-ways] [--recipes debias]

`packed` is the trainer's default text pass where the reported encoders have `grouped`; `frozen` trains the text tower
alone, packed too; `again` is the reported way with today's code, which shows what else changed. All of them without the
term on late sentences. Base, settings, seeds and held-out sets are those of `scripts/experiments.py`. Each training has
a report of its own (processor seconds, peak memory) beside those of `debias-sd evaluate`. One job at a time, one
thread; what has its report is skipped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from experiments import REPEATS, RETRIEVAL_COUNT, ROOT, SAMPLING, VARIANTS, Encoder, call, evaluate_command
from weights import inside_root, training_environment

sys.path.insert(0, str(ROOT))  # this checkout's, whatever is installed

from debias_sd.report import Report

FOLDER = Path("results") / "training-ways"
PACKED = ("--text_pass", "packed")
WAYS = {"packed": PACKED, "frozen": (*PACKED, "--freeze_image_tower", "true"), "again": ("--text_pass", "grouped")}
RECIPES = {"debias": "debias-l0.1", "long-clip": "long-clip-l0.5"}  # with their own weight of the short caption


def encoders_of(recipe: str, seed: int, runs: Path) -> list[Encoder]:
    """`frozen` and `packed` with each training seed, `again` with the first; all from the base of `seed`.

    The order is that of what is worth most when time runs out: one packed training, all frozen ones, the rest.
    """
    variant, folder = RECIPES[recipe], runs / f"s{seed}"

    def make(way: str, number: int) -> Encoder:
        name = f"{recipe}-{way}{variant.removeprefix(recipe)}-" + (f"s{seed}" if number == seed else f"f{number}")
        return Encoder(name, folder / name, folder / "base", *VARIANTS[variant], number, WAYS[way])

    seeds = range(seed, seed + REPEATS)
    order = [("packed", seed), *(("frozen", number) for number in seeds)]
    order += [*(("packed", number) for number in seeds[1:]), ("again", seed)]
    return [make(*one) for one in order]


def train(encoder: Encoder, log: Path) -> None:
    """Train `encoder` unless its folder is finished; `cost.json` in it is of the last start only."""
    if (encoder.folder / "provenance.json").exists():
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("a") as out:
        command = [sys.executable, *encoder.train_command()]
        process = subprocess.Popen(command, cwd=ROOT, env=training_environment(), stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"training_ways: {' '.join(command)} ended with exit code {process.returncode}; see {log}.")
    cost = {
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "wall_seconds": time.monotonic() - started,
        "peak_mb": usage.ru_maxrss * 1024 / 1e6,
        "resumed": "resuming from" in log.read_text(),
    }
    (encoder.folder / "cost.json").write_text(json.dumps(cost))


def write_cost(encoder: Encoder, path: Path) -> None:
    """The report of one training: what it took, of the whole process, and its last step."""
    facts = json.loads((encoder.folder / "provenance.json").read_text())
    cost = json.loads((encoder.folder / "cost.json").read_text())
    settings = {
        name: facts["config"][name] for name in ("seed", "text_pass", "freeze_image_tower", "max_train_steps")
    } | {"batch": facts["config"]["train_batch_size"], "threads": 1}
    result = {"sha256": facts["sha256"]["model.safetensors"], "final": facts["final"]} | cost
    command = " ".join(["python", *encoder.train_command()])
    Report("training", settings, {encoder.name: result}, command=command, seconds=cost["wall_seconds"]).write(path)


def train_and_measure(encoder: Encoder, pipeline: Path, reports: Path) -> None:
    """The three reports of one encoder, those that are missing."""
    log = encoder.folder.with_name(encoder.folder.name + ".log")
    train(encoder, log)
    more = {"retrieval": ["--count", str(RETRIEVAL_COUNT)], "fidelity": ["--base", str(pipeline), *SAMPLING]}
    if not (reports / f"training-{encoder.name}.json").exists():
        write_cost(encoder, reports / f"training-{encoder.name}.json")
    for kind, options in more.items():
        report = reports / f"{kind}-{encoder.name}.json"
        if not report.exists():
            call([*evaluate_command(kind, encoder, report), *options], log)
    print(f"{encoder.name}: done", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="of the base and the first fine-tunings")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--reports", type=Path, default=FOLDER)
    parser.add_argument("--recipes", nargs="+", choices=tuple(RECIPES), default=list(RECIPES))
    options = parser.parse_args()
    runs, reports = inside_root(options.runs), inside_root(options.reports)
    os.chdir(ROOT)
    pipeline = runs / f"s{options.seed}" / "stable-diffusion" / "pipeline"
    if not pipeline.exists():
        raise SystemExit(
            f"training_ways: no pipeline at {pipeline}; run scripts/weights.py --seed {options.seed} first."
        )
    reports.mkdir(parents=True, exist_ok=True)
    for recipe in options.recipes:
        for encoder in encoders_of(recipe, options.seed, runs):
            train_and_measure(encoder, pipeline, reports)


if __name__ == "__main__":
    main()
