"""Time of a training step of the embedded recipes, in each way: `python benchmarks/shapes_step.py [--rounds 8]`.

The real step (`train_encoder.step.train_step`) of the shipped config from the shipped base, without the term on late
sentences as in `experiments.py --other-ways`, on the same batches, in turns in one process, the order rotating: both
text passes, each with both towers training and with the image tower frozen. Processor time is what is compared: it does
not see what else the machine does, but for the caches that are shared. Beside the step: making a batch (scenes,
captions, pictures or features) and computing a picture's features.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's trainer, whatever is installed

from benchmarks.encode import take_turns  # noqa: E402
from debias_sd.report import Report, hash_file  # noqa: E402

BASE = ROOT / "debias_sd" / "weights" / "base"
CONFIGS = {"debias": "shapes_debias.yaml", "long-clip": "shapes_long_clip.yaml"}
WAYS = {
    f"{text_pass}{', frozen' if frozen else ''}": {"text_pass": text_pass, "freeze_image_tower": frozen}
    for text_pass in ("grouped", "packed")
    for frozen in (False, True)
}


def make_config(recipe: str, way: str, folder: Path, *, steps: int, batch: int) -> Any:
    """The config of `recipe` with the settings of `way`, for a run of `steps` steps."""
    from train_encoder.settings import parse_arguments

    settings = {"output_dir": str(folder), "pretrained_model_name_or_path": str(BASE), "max_train_steps": steps}
    settings |= {"train_batch_size": batch, "lr_warmup_steps": 1, "checkpointing_steps": 0}
    settings |= {"late_sentences_weight": 0} | WAYS[way]  # the reported steps are from before the configs had it
    arguments = ["--config", str(ROOT / "train_encoder" / "configs" / CONFIGS[recipe])]
    return parse_arguments(
        [*arguments, *(part for name, value in settings.items() for part in (f"--{name}", str(value)))]
    )


class Turns:
    """One way's run; calling it makes its next step on the next of the batches that were made before."""

    def __init__(self, config: Any) -> None:
        from train_encoder.prepare import prepare
        from train_encoder.train import make_loader

        started = time.process_time()
        self.run = prepare(config)
        self.prepared = time.process_time() - started  # with a frozen tower: the features of all pictures
        self.making: list[float] = []  # processor seconds of each batch
        self.batches = self._made(iter(make_loader(self.run)))
        self.row: dict[str, float] = {}

    def _made(self, loader: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        batches = []
        for _ in range(self.run.config.max_train_steps):
            started = time.process_time()
            batches.append(next(loader))
            self.making.append(time.process_time() - started)
        return iter(batches)

    def __call__(self) -> None:
        from train_encoder.step import train_step

        self.row = train_step(self.run, next(self.batches))


def measure(recipe: str, *, rounds: int, batch: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of each way, and what was measured beside the steps. The first round, not counted, warms up."""
    with tempfile.TemporaryDirectory() as folder:
        turns = {
            way: Turns(make_config(recipe, way, Path(folder) / way, steps=rounds + 1, batch=batch)) for way in WAYS
        }
        take_turns(turns, rounds=1)
        wall, cpu = take_turns(turns, rounds=rounds)
    results = {
        way: {
            "sha256": hash_file(BASE / "model.safetensors"),
            "processor_seconds": cpu[way],
            "wall_seconds": wall[way],
            "batch_seconds": turn.making[1:],
            "loss": turn.row["loss"],
        }
        for way, turn in turns.items()
    }
    pictures = (rounds + 1) * batch
    started = time.process_time()
    towers, data = turns["packed"].run.towers, turns["packed"].run.data
    compute_features(towers, data, pictures)
    beside = {"pictures": pictures, "processor_seconds": time.process_time() - started}
    return results, {"features_once": beside}


@torch.no_grad()
def compute_features(towers: Any, data: Any, pictures: int) -> None:
    """What a run with a frozen tower does once: draw each picture and read it."""
    for first in range(0, pictures, 64):
        images = [data.picture(number) for number in range(first, min(first + 64, pictures))]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            towers.image_features(data.preprocessing.normalise(images))


def describe(results: dict[str, Any], beside: dict[str, Any]) -> str:
    """The report in a few lines."""
    base = statistics.median(results["grouped"]["processor_seconds"])
    lines = []
    for way, result in results.items():
        step, making = (statistics.median(result[key]) for key in ("processor_seconds", "batch_seconds"))
        lines.append(f"  {way:<16} {step:6.3f} s a step ({step / base:.2f} of grouped), {making:.3f} s to make a batch")
    once = beside["features_once"]
    lines.append(f"  features, once: {1000 * once['processor_seconds'] / once['pictures']:.2f} ms a picture")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", choices=tuple(CONFIGS), default="debias")
    parser.add_argument("--rounds", type=int, default=8, help="steps of each way")
    parser.add_argument("--batch", type=int, default=64, help="pairs")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.batch - 1) < 1:
        print("benchmarks/shapes_step.py: --rounds must be 1 or more, --batch 2 or more.", file=sys.stderr)
        return 2
    started = time.monotonic()
    torch.set_num_threads(1)  # as the embedded encoders are trained
    results, beside = measure(options.recipe, rounds=options.rounds, batch=options.batch)
    print(describe(results, beside))
    if options.out is not None:
        settings = {"seed": 0, "recipe": options.recipe, "rounds": options.rounds, "batch": options.batch, "threads": 1}
        command = " ".join(["python benchmarks/shapes_step.py", *arguments])
        seconds = time.monotonic() - started
        Report("step", settings, results, command=command, seconds=seconds, extra=beside).write(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
