"""Speed and memory of a training step on a CPU: `python benchmarks/train_step.py [--batch 16] [--out FILE.json]`.

Four ways (see `clip_step.py`) with the same weights and texts, in turns in one process, the order rotating; their
losses and gradients on four of the pairs are compared first, in float64, where twelve layers of rounding neither hide
nor feign a difference. Peak memory is that of a fresh process per way. Goals: images/s of ours against
the padded step 1.2 times on the whole step and 3 times with the image tower frozen and its features cached; 0.85 of the
floor, which is what counting multiplications allows. Processor time is what is compared: it does not see what else the
machine does; wall time is in the report too.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
from pathlib import Path

import torch
from torch import Tensor
from transformers import CLIPModel

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout's trainer, whatever is installed

from benchmarks.clip_step import (  # noqa: E402
    Operations,
    Size,
    Step,
    count_operations,
    gradients_of,
    make_batch,
    make_model,
    make_step,
    read_texts,
)
from benchmarks.encode import clip_tokenizer, take_turns  # noqa: E402
from debias_sd.report import installed_versions, write_atomically  # noqa: E402

TEXTS = ROOT.parent / "shared" / "data" / "iiw400_captions.jsonl"
WAYS = ("padded", "open_clip", "ours", "frozen")
SMALL = Size(text_width=64, vision_width=64, text_layers=2, vision_layers=2, image=32, projection=32)
EQUAL = 1e-5
CHECKED = 4  # pairs whose losses and gradients are compared
GOALS = {"step": 1.2, "frozen": 3.0, "share_of_floor": 0.85}


def prepare(options: argparse.Namespace) -> tuple[dict[str, Tensor], Size, object, int]:
    """The batch, the size, the model and the end token's id."""
    tokenizer = clip_tokenizer()
    size = SMALL if options.small else Size()
    texts = read_texts(options.texts, tokenizer, count=options.batch)
    model = make_model(size, tokenizer, attention=options.attention)
    return make_batch(texts, tokenizer, size), size, model, tokenizer.eos_token_id


def steps_to_compare(model: CLIPModel, batch: dict[str, Tensor], size: Size) -> dict[str, Step]:
    """All ways in float64, on the batch's first pairs."""
    exact = copy.deepcopy(model).double()
    few = {key: value[:CHECKED] for key, value in batch.items()}
    few["pixel_values"] = few["pixel_values"].double()
    return {name: make_step(name, exact, few, size) for name in WAYS}


def differences(steps: dict[str, Step]) -> dict[str, dict[str, float]]:
    """How far each way's loss and gradients are from the padded step's; gradients relative to the largest of all.

    Raises RuntimeError beyond 1e-5: other work would be compared. `frozen` has the text tower's gradients only.
    """
    with torch.no_grad():
        wanted = float(steps["padded"].loss())
    gradients = gradients_of(steps["padded"])
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    found = {}
    for name in steps.keys() - {"padded"}:
        own = gradients_of(steps[name])
        if name != "frozen" and own.keys() != gradients.keys():
            raise RuntimeError(f"{name} has gradients of other tensors than the padded step; it does other work.")
        with torch.no_grad():
            loss = abs(float(steps[name].loss()) - wanted)
        gradient = max(float((value - gradients[key]).abs().max()) for key, value in own.items()) / largest
        if loss > EQUAL or gradient > EQUAL:
            raise RuntimeError(f"{name} differs from the padded step by {loss:.1e} in the loss and {gradient:.1e} in "
                               "its gradients; their times cannot be compared.")  # fmt: skip
        found[name] = {"loss": loss, "gradient": gradient}
    return found


def peak_of(name: str, options: argparse.Namespace) -> dict[str, float]:
    """Resident megabytes of a fresh process before its first step and at its peak."""
    command = [sys.executable, __file__, "--only", name, "--batch", str(options.batch), "--texts", str(options.texts)]
    command += ["--threads", str(options.threads), "--attention", options.attention]
    done = subprocess.run(command + ["--small"] * options.small, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_megabytes() -> float:
    """This process's peak resident memory. Linux only: ru_maxrss would start from what the parent held."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def run_only(options: argparse.Namespace) -> dict[str, float]:
    """One step of one way; what `peak_of` starts."""
    batch, size, model, _ = prepare(options)
    step = make_step(options.only, model, batch, size)
    del model
    before = peak_megabytes()
    step.loss().backward()
    return {"before_mb": before, "peak_mb": peak_megabytes()}


def compare_times(seconds: dict[str, list[float]], counts: dict[str, Operations]) -> dict[str, dict[str, float]]:
    """Each way's speed-up over the padded step, and of ours what share of the floor's that is."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    speedup = {name: medians["padded"] / median for name, median in medians.items()}
    padded, floor = counts["padded"], counts["floor"]
    allowed = {"ours": padded.whole / floor.whole, "frozen": padded.whole / floor.text}
    # The text side alone: the image tower's time is that of the step without the frozen one's.
    image = medians["ours"] - medians["frozen"]
    text = (medians["padded"] - image) / medians["frozen"]
    return {
        "speedup": speedup,
        "floor_speedup": allowed | {"text": padded.text / floor.text},
        "share_of_floor": {name: speedup[name] / allowed[name] for name in allowed},
        "text_speedup": {"ours": text},
    }


def measure(options: argparse.Namespace) -> dict[str, object]:
    """The whole report."""
    batch, size, model, end_id = prepare(options)
    counts = count_operations(batch, size, end_id=end_id)
    equal = differences(steps_to_compare(model, batch, size))
    steps = {name: make_step(name, model, batch, size) for name in WAYS}

    def run(step: Step) -> None:
        step.module.zero_grad(set_to_none=True)
        step.loss().backward()

    wall, cpu = take_turns({name: lambda step=step: run(step) for name, step in steps.items()}, rounds=options.rounds)
    steps.clear()
    lengths = [(ids == end_id).int().argmax(dim=1).float().add(1).mean().item() for ids in
               (batch["input_ids"], batch["short_ids"])]  # fmt: skip
    return {
        "kind": "speed of a training step",
        "size": vars(size),
        "pairs": options.batch,
        "mean_tokens": {"long": lengths[0], "short_with_pads": lengths[1]},
        "attention": options.attention,
        "threads": torch.get_num_threads(),
        "rounds": options.rounds,
        "differences": {"pairs": CHECKED, "dtype": "float64"} | equal,
        "images_per_second": {name: options.batch / statistics.median(times) for name, times in wall.items()},
        "gigaoperations": {name: {"image": c.image / 1e9, "text": c.text / 1e9} for name, c in counts.items()},
        "processor_time": compare_times(cpu, counts),
        "wall_time": compare_times(wall, counts),
        "memory": {} if options.no_memory else {name: peak_of(name, options) for name in WAYS},
        "goals": GOALS,
        "seconds": wall,
        "cpu_seconds": cpu,
        "versions": installed_versions(),
    }


def describe(report: dict[str, object]) -> str:
    """The report in a few lines."""
    time, share = report["processor_time"], report["processor_time"]["share_of_floor"]
    lines = [
        f"{report['pairs']} pairs, long captions of {report['mean_tokens']['long']:.0f} tokens, short ones with their "
        f"pads {report['mean_tokens']['short_with_pads']:.0f}; {report['threads']} threads, median of "
        f"{report['rounds']}, processor time against the padded step"
    ]
    for name in WAYS:
        memory = report["memory"].get(name)
        peak = "" if memory is None else f"   peak {memory['peak_mb']:6.0f} MB"
        part = "" if name not in share else f"   {share[name]:.2f} of the floor's {time['floor_speedup'][name]:.2f}"
        lines.append(f"  {name:<10}{time['speedup'][name]:5.2f} times{peak}{part}")
    largest = max(value for name in WAYS[1:] for value in report["differences"][name].values())
    lines.append(
        f"  text side {time['text_speedup']['ours']:5.2f} times, the floor's {time['floor_speedup']['text']:.2f}; "
        f"largest difference of losses and gradients {largest:.1e}"
    )
    goals = {"step": time["speedup"]["ours"], "frozen": time["speedup"]["frozen"], "share_of_floor": share["ours"]}
    said = (f"{k} {v:.2f} of {GOALS[k]:.2f} {'met' if v >= GOALS[k] else 'missed'}" for k, v in goals.items())
    return "\n".join([*lines, "  goals: " + ", ".join(said)])


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16, help="pairs")
    parser.add_argument("--rounds", type=int, default=5, help="steps of each way")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--attention", choices=("eager", "sdpa"), default="eager", help="of transformers' own passes")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="JSON lines with a caption each")
    parser.add_argument("--small", action="store_true", help="a toy's size, to try the script")
    parser.add_argument("--no-memory", action="store_true", help="measure no peak memory")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    parser.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        if min(options.batch - 1, options.rounds, options.threads) < 1:
            raise ValueError("--batch must be at least 2, --rounds and --threads at least 1; change them.")
        torch.set_num_threads(options.threads)
        if options.only:
            print(json.dumps(run_only(options)))
            return 0
        report = measure(options)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/train_step.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
