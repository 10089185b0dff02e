"""Speed of data loading: `python benchmarks/load_data.py [--step FILE.json] [--out FILE.json]`.

A list in ShareGPT4V's form with JPEG pictures of 640 x 480, made on the fly, goes through the trainer's own reader,
preprocessing (224 x 224), augmentation and tokenizer into the batches of a training step, with two data workers. What
they deliver is compared with what a step takes: the report of `benchmarks/train_step.py` at B/16's size. Goals: three
times the step's images a second, and under 100 microseconds of augmentation a caption (the sentences split, dropped,
drawn and joined, and the pads in front), measured in one thread on the same captions. With the image tower frozen no
picture is opened; that is measured too.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's trainer, whatever is installed

from benchmarks.clip_step import Size, make_model, read_texts  # noqa: E402
from benchmarks.encode import clip_tokenizer  # noqa: E402
from debias_sd.datasets.sharegpt4v import HELD_OUT  # noqa: E402
from debias_sd.report import installed_versions, write_atomically  # noqa: E402

TEXTS = ROOT.parent / "shared" / "data" / "iiw400_captions.jsonl"
STEP = ROOT / "benchmarks" / "reports" / "train_step.json"
GOALS = {"times_the_step": 3.0, "augmentation_us": 100.0}
# The towers are a toy's: nothing of them runs, but for the pictures' size and the features of a frozen one.
TOY = Size(text_width=64, vision_width=64, text_layers=1, vision_layers=1, image=224, projection=32)
TURNS = 16  # different pictures; a list repeats them under other names


def write_set(folder: Path, texts: list[str], *, records: int, width: int, height: int) -> Path:
    """A list of `records` that train, after the 1,000 that are held out, and their pictures as JPEG files."""
    (folder / "coco").mkdir()
    contents = [_picture(seed, width, height, folder / "picture.jpg") for seed in range(min(TURNS, records))]
    rows = []
    for number in range(HELD_OUT + records):
        name = f"coco/{number:08d}.jpg"
        if number >= HELD_OUT:
            (folder / name).write_bytes(contents[number % len(contents)])
        said = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": texts[number % len(texts)]}]
        rows.append({"id": str(number), "image": name, "conversations": said})
    path = folder / "share-captioner.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    return path


def _picture(seed: int, width: int, height: int, path: Path) -> bytes:
    """Blobs of all sizes with grain: as many bytes as a photograph's JPEG has, 60 to 100 kB at 640 x 480."""
    rng = np.random.default_rng(seed)
    image = np.zeros((height, width, 3), np.float32)
    for scale, weight in ((4, 60), (16, 40), (64, 16), (256, 6)):
        small = rng.normal(size=(scale * 3 // 4 + 1, scale, 3)).astype(np.float32)
        layers = [Image.fromarray(small[..., c]).resize((width, height), Image.Resampling.BICUBIC) for c in range(3)]
        image += weight * np.stack([np.asarray(layer) for layer in layers], axis=-1)
    image += rng.normal(scale=3, size=image.shape).astype(np.float32)
    Image.fromarray((image + 128).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path.read_bytes()


def prepare_run(folder: Path, data: Path, options: argparse.Namespace, *, freeze: bool) -> Any:
    """A run of the trainer that is ready to step, with the published recipe."""
    from train_encoder.prepare import prepare
    from train_encoder.settings import make_config

    settings = {"output_dir": str(folder / f"run-{freeze}"), "pretrained_model_name_or_path": str(folder / "clip")}
    settings |= {"train_data": f"sharegpt4v:{data}", "recipe": "debias", "train_batch_size": options.batch}
    settings |= {"max_train_steps": options.batches, "lr_warmup_steps": 0, "freeze_image_tower": freeze}
    return prepare(make_config(settings | {"dataloader_num_workers": options.workers, "stretch_factor": 1}))


def images_per_second(run: Any) -> dict[str, float]:
    """Images a second of the run's own loader, without the first batch of each worker, in which it starts."""
    from train_encoder.train import make_loader

    started, count, skipped = 0.0, 0, max(run.config.dataloader_num_workers, 1)
    for number, batch in enumerate(make_loader(run)):
        if number == skipped:
            started = time.monotonic()
        elif number > skipped:
            count += len(batch["input_ids"])
    return {"images_per_second": count / (time.monotonic() - started), "images": count}


def work_of_a_pair(run: Any, *, rounds: int) -> float:
    """Milliseconds of one thread's processor time that a pair takes from the disk to its place in a batch."""
    from train_encoder.train import make_loader

    collate, numbers = make_loader(run).collate_fn, range(run.config.train_batch_size)
    times = []
    for _ in range(rounds):
        started = time.process_time()
        collate([run.data[number] for number in numbers])
        times.append(time.process_time() - started)
    return 1e3 * min(times) / len(numbers)


def augmentation(texts: list[str], *, rounds: int) -> dict[str, float]:
    """Microseconds of processor time a caption, the best of `rounds`: of the text, and of the pads in front."""
    from debias_sd.tokens import tokenize
    from train_encoder.data.batches import ClipTexts, short_text

    tokenizer = clip_tokenizer()
    kept = ClipTexts(tokenizer, tokenizer.model_max_length, 0)
    rngs = [random.Random(number) for number in range(len(texts))]

    def time_of(work: Any) -> float:
        times = []
        for _ in range(rounds):
            started = time.process_time()
            work()
            times.append(time.process_time() - started)
        return 1e6 * min(times) / len(texts)

    def shorten() -> list[str]:
        return [
            short_text(text, random.Random(f"0/short/{number}"), remove_summary=True, subsample=True)
            for number, text in enumerate(texts)
        ]

    shorts = shorten()
    plain = time_of(lambda: tokenize(tokenizer, shorts, length=tokenizer.model_max_length, pad_id=0))
    padded = time_of(lambda: kept.front_padded(shorts, rngs))
    found = {"text": time_of(shorten), "pads": max(padded - plain, 0.0)}
    return found | {"whole": sum(found.values()), "tokens_of_the_short_one": plain}


def read_step(path: Path) -> dict[str, float]:
    """Images a second of a training step, whole and with the image tower frozen; ValueError where there are none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["images_per_second"]
        return {"ours": float(found["ours"]), "frozen": float(found["frozen"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"{path} is not a report of benchmarks/train_step.py; make it, or name another by --step."
        ) from None


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The whole report."""
    step, tokenizer = read_step(options.step), clip_tokenizer()
    texts = read_texts(options.texts, tokenizer, count=options.captions)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_model(TOY, tokenizer, attention="eager").save_pretrained(folder / "clip")
        tokenizer.save_pretrained(folder / "clip")
        records = options.batch * options.batches
        data = write_set(folder, texts, records=records, width=options.width, height=options.height)
        size = statistics.mean(path.stat().st_size for path in (folder / "coco").iterdir())
        rates = {}
        for kind, freeze in (("pictures", False), ("kept_features", True)):
            run = prepare_run(folder, data, options, freeze=freeze)
            work = {"milliseconds_of_a_pair": work_of_a_pair(run, rounds=options.rounds)}
            rates[kind] = images_per_second(run) | work
    augmented = augmentation(texts, rounds=options.rounds)
    times = {
        "pictures": rates["pictures"]["images_per_second"] / step["ours"],
        "kept_features": rates["kept_features"]["images_per_second"] / step["frozen"],
    }
    return {
        "kind": "speed of data loading",
        "pictures": {"width": options.width, "height": options.height, "mean_bytes": size},
        "batch": options.batch,
        "workers": options.workers,
        "rates": rates,
        "captions_per_second": {kind: 2 * rate["images_per_second"] for kind, rate in rates.items()},
        "step_images_per_second": step,
        "times_the_step": times,
        "augmentation_us": augmented | {"captions": len(texts)},
        "goals": GOALS,
        "met": {
            "times_the_step": min(times.values()) >= GOALS["times_the_step"],
            "augmentation_us": augmented["whole"] < GOALS["augmentation_us"],
        },
        "versions": installed_versions(),
    }


def describe(report: dict[str, Any]) -> str:
    """The report in a few lines."""
    lines = [f"{report['workers']} data workers, batches of {report['batch']} pairs with a long and a short caption"]
    for kind, name in (("pictures", "ours"), ("kept_features", "frozen")):
        rate, step = report["rates"][kind]["images_per_second"], report["step_images_per_second"][name]
        lines.append(
            f"  {kind.replace('_', ' '):<14}{rate:8.1f} images/s, {report['times_the_step'][kind]:7.1f} times the "
            f"step's {step:.2f}; {report['rates'][kind]['milliseconds_of_a_pair']:.2f} ms of a processor a pair"
        )
    found = report["augmentation_us"]
    lines.append(
        f"  augmentation  {found['whole']:8.1f} us a caption: text {found['text']:.1f}, pads {found['pads']:.1f}"
    )
    said = (f"{name} {'met' if met else 'missed'} (goal {GOALS[name]:g})" for name, met in report["met"].items())
    return "\n".join([*lines, "  goals: " + ", ".join(said)])


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="pairs of a batch")
    parser.add_argument("--batches", type=int, default=24, help="batches to load")
    parser.add_argument("--workers", type=int, default=2, help="data workers")
    parser.add_argument("--captions", type=int, default=200, help="different captions")
    parser.add_argument("--rounds", type=int, default=7, help="times that the augmentation is timed; the best counts")
    parser.add_argument("--width", type=int, default=640)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--texts", type=Path, default=TEXTS, help="JSON lines with a caption each")
    parser.add_argument("--step", type=Path, default=STEP, help="report of benchmarks/train_step.py to compare with")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        if options.batches < max(options.workers, 1) + 2 or min(options.batch, options.rounds) < 1:
            raise ValueError("--batches must exceed --workers by 2, --batch and --rounds must be 1 or more; change it.")
        report = measure(options)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/load_data.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
