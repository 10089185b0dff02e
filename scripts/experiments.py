"""Train the encoders that `docs/results.md` compares and measure each: `make results`.

    python scripts/experiments.py [--seed 0] [--runs runs] [--reports results] [--jobs 2] [--variants NAME ...]

Three bases, and from the first of them (the one that the UNet was trained on, so that pictures can be compared) three
fine-tunings of each recipe with each weight of the short caption: 0.1, the paper's, and 0.5, Long-CLIP's equal parts.
`free` variants leave out the term that keeps the encoder close to the base, `sentences` add the one that holds late
sentences. Every step resumes, and is skipped when its report is there; reports are JSON files that `scripts/results.py`
turns into `docs/results.md`.

    python scripts/experiments.py --other-ways [--recipes debias]

trains the embedded recipes in other ways than the reported encoders, and measures quality, time and memory. `packed` is
the trainer's default text pass where the reported encoders have `grouped`; `frozen` trains the text tower alone, packed
too; `again` is the reported way with today's code, which shows what else changed. All of them without the term on late
sentences, from the same base, with the same settings, seeds and held-out sets. Each training has a report of its own
(processor seconds, peak memory) beside those of `debias-sd evaluate`. One job at a time, one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from weights import ROOT, inside_root, training_environment

sys.path.insert(0, str(ROOT))  # this checkout's, whatever is installed

from debias_sd.report import Report

# name -> (recipe, weight of the short caption, of the stay-close term, of the late-sentences term). The last one's 1.0
# was chosen on evaluation seed 5, which no table reports (docs/log.md).
VARIANTS = {
    "long-clip-sentences-l0.5": ("long-clip", 0.5, 1.0, 1.0),
    "debias-sentences-l0.1": ("debias", 0.1, 1.0, 1.0),
    "long-clip-l0.5": ("long-clip", 0.5, 1.0, 0.0),
    "debias-l0.1": ("debias", 0.1, 1.0, 0.0),
    "long-clip-l0.1": ("long-clip", 0.1, 1.0, 0.0),
    "debias-l0.5": ("debias", 0.5, 1.0, 0.0),
    "long-clip-free-l0.5": ("long-clip", 0.5, 0.0, 0.0),
    "debias-free-l0.1": ("debias", 0.1, 0.0, 0.0),
}
# The folders that `make weights` makes.
SHIPPED = {"long-clip-sentences-l0.5": "long-clip", "debias-sentences-l0.1": "debias"}
REPEATS = 3  # bases, and fine-tunings of each variant but the free ones, which have one
# A thousand scenes would double the time and change no verdict: the spread over seeds is what limits them.
RETRIEVAL_COUNT = 400
SAMPLING = ("--steps", "25", "--guidance-scale", "2")  # what the embedded pipeline is used with
PACKED = ("--text_pass", "packed")
OTHER_WAYS = {
    "packed": PACKED,
    "frozen": (*PACKED, "--freeze_image_tower", "true"),
    "again": ("--text_pass", "grouped"),
}
OWN_WEIGHT = {"debias": "debias-l0.1", "long-clip": "long-clip-l0.5"}  # with their own weight of the short caption


@dataclass(frozen=True)
class Encoder:
    """One trained encoder: its name in reports, its folder, and how it is trained."""

    name: str
    folder: Path
    base: Path | None
    recipe: str
    short_weight: float | None
    stay_close_weight: float | None
    late_sentences_weight: float | None
    seed: int
    settings: tuple[str, ...] = ()  # more of the trainer's options

    def train_command(self) -> list[str]:
        config = f"train_encoder/configs/shapes_{self.recipe.replace('-', '_')}.yaml"
        command = ["-m", "train_encoder", "--config", config, "--output_dir", str(self.folder)]
        command += ["--seed", str(self.seed), "--resume_from_checkpoint", "latest"]
        if self.base is not None:
            command += ["--pretrained_model_name_or_path", str(self.base), "--short_weight", str(self.short_weight)]
            command += ["--stay_close_weight", str(self.stay_close_weight)]
            command += ["--late_sentences_weight", str(self.late_sentences_weight)]
        return [*command, *self.settings]


def bases(seed: int, runs: Path) -> list[Encoder]:
    """The base of `seed`, on which everything else is built, and those of the next seeds."""
    seeds = range(seed, seed + REPEATS)
    return [Encoder(f"base-s{s}", runs / f"s{s}" / "base", None, "base", None, None, None, s) for s in seeds]


def fine_tuned(seed: int, runs: Path) -> list[Encoder]:
    """All variants from the base of `seed`, with that seed (`-s0`) and other fine-tuning seeds (`-f1`).

    Those that ship come first.
    """
    folder, found = runs / f"s{seed}", []
    for number in range(seed, seed + REPEATS):
        for variant, settings in VARIANTS.items():
            if number != seed and "free" in variant:
                continue
            if number == seed:
                name, place = f"{variant}-s{seed}", folder / SHIPPED.get(variant, variant)
            else:
                name = f"{variant}-f{number}"
                place = folder / name
            found.append(Encoder(name, place, folder / "base", *settings, number))
    return sorted(found, key=lambda encoder: encoder.name.rsplit("-", 1)[0] not in SHIPPED)


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
        count = ["--count", str(RETRIEVAL_COUNT)] if kind == "retrieval" else []
        if not report.exists():
            call([*evaluate_command(kind, encoder, report), *count], log)
    print(f"{encoder.name}: done", flush=True)


def evaluate_command(kind: str, encoder: Encoder, report: Path) -> list[str]:
    named = f"{encoder.name}={encoder.folder}"
    return ["-m", "debias_sd", "evaluate", kind, "--encoder", named, "--out", str(report)]


def measure_pictures(encoders: list[Encoder], pipeline: Path, reports: Path, log: Path) -> None:
    """Late-detail scores of encoders in the one UNet, which was trained on the first base and never adapted."""
    for encoder in encoders:
        report = reports / f"fidelity-{encoder.name}.json"
        if not report.exists():
            call([*evaluate_command("fidelity", encoder, report), "--base", str(pipeline), *SAMPLING], log)
        print(f"pictures of {encoder.name}: done", flush=True)


def encoders_of(recipe: str, seed: int, runs: Path) -> list[Encoder]:
    """`frozen` and `packed` with each training seed, `again` with the first; all from the base of `seed`.

    The order is that of what is worth most when time runs out: one packed training, all frozen ones, the rest.
    """
    variant, folder = OWN_WEIGHT[recipe], runs / f"s{seed}"

    def make(way: str, number: int) -> Encoder:
        name = f"{recipe}-{way}{variant.removeprefix(recipe)}-" + (f"s{seed}" if number == seed else f"f{number}")
        return Encoder(name, folder / name, folder / "base", *VARIANTS[variant], number, OTHER_WAYS[way])

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
        raise SystemExit(f"experiments: {' '.join(command)} ended with exit code {process.returncode}; see {log}.")
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


def measure_other_way(encoder: Encoder, pipeline: Path, reports: Path) -> None:
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
    parser.add_argument("--seed", type=int, default=0, help="of the first base; `make weights` makes that of 0")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--reports", type=Path, help="default: results; with --other-ways results/training-ways")
    parser.add_argument("--jobs", type=int, default=2, help="trainings side by side, one thread each")
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), help="these alone; default: all")
    parser.add_argument("--other-ways", action="store_true", help="train in other ways, one job at a time")
    parser.add_argument(
        "--recipes", nargs="+", choices=tuple(OWN_WEIGHT), default=list(OWN_WEIGHT), help="of these ways"
    )
    options = parser.parse_args()
    usual = Path("results") / ("training-ways" if options.other_ways else "")
    # Relative to this checkout where they are in it: folder names go into provenance and reports, for others to read.
    runs, reports = inside_root(options.runs), inside_root(options.reports or usual)
    os.chdir(ROOT)
    pipeline = runs / f"s{options.seed}" / "stable-diffusion" / "pipeline"
    if options.other_ways:
        check_pipeline(pipeline, options.seed)
        reports.mkdir(parents=True, exist_ok=True)
        for encoder in (one for recipe in options.recipes for one in encoders_of(recipe, options.seed, runs)):
            measure_other_way(encoder, pipeline, reports)
        return
    reports.mkdir(parents=True, exist_ok=True)
    first, *others = bases(options.seed, runs)
    train_and_measure(first, reports)
    tuned = fine_tuned(options.seed, runs)
    if options.variants:
        tuned = [encoder for encoder in tuned if encoder.name.rsplit("-", 1)[0] in options.variants]
        others = []
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda encoder: train_and_measure(encoder, reports), [*tuned, *others]))
    check_pipeline(pipeline, options.seed)
    measure_pictures([first, *tuned], pipeline, reports, runs / "fidelity.log")


def check_pipeline(pipeline: Path, seed: int) -> None:
    """End the script where the UNet that draws all pictures has not been trained."""
    if not pipeline.exists():
        raise SystemExit(f"experiments: no pipeline at {pipeline}; run scripts/weights.py --seed {seed} first.")


if __name__ == "__main__":
    main()
