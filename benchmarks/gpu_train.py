"""Speed and memory of a training step on one GPU in bf16: `python benchmarks/gpu_train.py [--out FILE.json]`.

The ways of `train_step.py` under autocast, in turns, timed with the device's own events; peak memory is what PyTorch
allocated for the step beyond the weights. The share of the card's peak counts the multiplications that the step needs
(the floor, forward and backward) against the card's published dense bf16 rate. `--device cpu` tries the script.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's trainer, whatever is installed

from benchmarks.clip_step import (  # noqa: E402
    Operations,
    Size,
    count_operations,
    make_batch,
    make_model,
    make_step,
    read_texts,
)
from benchmarks.encode import clip_tokenizer  # noqa: E402
from benchmarks.train_step import SMALL, TEXTS, WAYS  # noqa: E402
from debias_sd.report import installed_versions, write_atomically  # noqa: E402

# Dense bf16 in teraoperations a second (a multiplication and its addition are two), from the makers' data sheets.
PEAKS = {"H200": 989, "H100": 989, "A100": 312, "L40S": 362, "L4": 121, "A10G": 125, "RTX 4090": 165, "RTX 3090": 71}


def peak_of_card(name: str) -> float | None:
    """The published rate of the card of that name, None for one that is not in the list."""
    return next((float(rate) for part, rate in PEAKS.items() if part in name), None)


def timed(call: Callable[[], None], device: torch.device) -> float:
    """Seconds of a call until the device has finished it."""
    if device.type == "cpu":
        started = time.perf_counter()
        call()
        return time.perf_counter() - started
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1000


def measure_way(call: Callable[[], None], device: torch.device, *, rounds: int) -> dict[str, object]:
    """Seconds of `rounds` steps after two to warm up, and the peak of memory over what lay there before."""
    for _ in range(2):
        call()
    before = 0
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [timed(call, device) for _ in range(rounds)]
    peak = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    return {"seconds": seconds, "step_megabytes": None if peak is None else peak / 1e6}


def measure(options: argparse.Namespace) -> dict[str, object]:
    """The whole report."""
    device = torch.device(options.device)
    tokenizer, size = clip_tokenizer(), SMALL if options.small else Size()
    texts = read_texts(options.texts, tokenizer, count=options.batch)
    batch = make_batch(texts, tokenizer, size)
    counts = count_operations(batch, size, end_id=tokenizer.eos_token_id)
    model = make_model(size, tokenizer, attention="sdpa").to(device)
    batch = {name: tensor.to(device) for name, tensor in batch.items()}
    ways = {}
    for name in WAYS:
        step = make_step(name, model, batch, size)

        def run(step=step) -> None:
            step.module.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = step.loss()
            loss.backward()

        ways[name] = measure_way(run, device, rounds=options.rounds)
        del step, run
    return make_report(options, ways, counts, device)


def make_report(
    options: argparse.Namespace, ways: dict[str, dict[str, object]], counts: dict[str, Operations], device: torch.device
) -> dict[str, object]:
    """Ratios to the padded step, and shares of the floor and of the card's peak."""
    medians = {name: statistics.median(way["seconds"]) for name, way in ways.items()}
    speedup = {name: medians["padded"] / median for name, median in medians.items()}
    padded, floor = counts["padded"], counts["floor"]
    needed = {"ours": floor.whole, "frozen": floor.text}
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    peak = peak_of_card(card)
    # Backward makes each product twice; a multiplication counts with its addition.
    rates = {name: 6 * operations / medians[name] / 1e12 for name, operations in needed.items()}
    return {
        "kind": "speed of a training step on a GPU",
        "card": card,
        "pairs": options.batch,
        "rounds": options.rounds,
        "images_per_second": {name: options.batch / median for name, median in medians.items()},
        "speedup": speedup,
        "share_of_floor": {name: speedup[name] / (padded.whole / operations) for name, operations in needed.items()},
        "teraoperations_per_second": rates,
        "share_of_peak": None if peak is None else {name: rate / peak for name, rate in rates.items()},
        "ways": ways,
        "versions": installed_versions(),
    }


def describe(report: dict[str, object]) -> str:
    """The report in a few lines."""
    lines = [f"{report['card']}, bf16, {report['pairs']} pairs, median of {report['rounds']}, against the padded step"]
    for name in WAYS:
        memory = report["ways"][name]["step_megabytes"]
        line = f"  {name:<10}{report['speedup'][name]:5.2f} times   {report['images_per_second'][name]:8.1f} images/s"
        line += "" if memory is None else f"   step {memory:7.0f} MB"
        if name in report["share_of_floor"]:
            line += f"   {report['share_of_floor'][name]:.2f} of the floor"
            if report["share_of_peak"] is not None:
                line += f"   {report['share_of_peak'][name]:.2f} of the card's peak"
        lines.append(line)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64, help="pairs")
    parser.add_argument("--rounds", type=int, default=10, help="steps of each way")
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the script")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="JSON lines with a caption each")
    parser.add_argument("--small", action="store_true", help="a toy's size")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    options = parser.parse_args(arguments)
    try:
        if options.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("no GPU is visible; measure on a CPU with train_step.py, or try --device cpu --small.")
        if min(options.batch - 1, options.rounds) < 1:
            raise ValueError("--batch must be at least 2 and --rounds at least 1; change them.")
        report = measure(options)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/gpu_train.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
