"""Seconds and memory of the embedded pipeline: `python benchmarks/generate.py [--out FILE.json]`.

One picture (25 steps, guidance on) in a fresh process: warm, which is the median after the first one, and cold, which
is imports, models and the first picture together; the process's peak resident memory. Then the whole command
`debias-sd compare` of three encoders, imports included. Goals on two cores: 3 s, 1,500 MB, 10 s.

This process loads no torch: a child's peak starts from what its parent held when it was started (Linux, across exec).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from debias_sd.report import installed_versions, write_atomically

GOALS = {"picture_seconds": 3.0, "peak_mb": 1500.0, "compare_seconds": 10.0}
STEPS, GUIDANCE = 25, 2.0
EMBEDDED = ("base", "long-clip", "debias")
# ru_maxrss counts bytes on macOS and kilobytes elsewhere.
PEAK_UNITS_PER_MB = 1e6 if sys.platform == "darwin" else 1e6 / 1024
CHILD = "--in-this-process"


def draw(options: argparse.Namespace) -> dict[str, object]:
    """Import, load, draw one picture and then `rounds` more in this process; seconds of each part."""
    started = time.perf_counter()
    import torch

    from debias_sd.pipelines.load import load_debias_pipeline
    from debias_sd.prompts.conditioning import encode_prompt

    imported = time.perf_counter()
    pipe = load_debias_pipeline(options.base, options.encoder[-1])
    pipe.set_progress_bar_config(disable=True)
    loaded = time.perf_counter()
    seconds = []
    for _ in range(options.rounds + 1):
        begin = time.perf_counter()
        states = encode_prompt(pipe, long_prompt())
        generator = torch.Generator().manual_seed(0)
        image = pipe(**states, num_inference_steps=STEPS, guidance_scale=GUIDANCE, generator=generator).images[0]
        seconds.append(time.perf_counter() - begin)
    return {
        "size": image.size,
        "threads": torch.get_num_threads(),
        "import_seconds": imported - started,
        "load_seconds": loaded - imported,
        "first_seconds": seconds[0],
        "warm_seconds": seconds[1:],
    }


def long_prompt() -> str:
    """The first held-out prompt: a summary and a sentence a detail, more than 77 tokens."""
    from debias_sd.datasets.world import prompt_set  # numpy and Pillow, which a child's peak would start from

    return prompt_set(0, count=1).captions[0].text


def run_measured(command: list[str]) -> tuple[str, float, float]:
    """Run `command`; its standard output, its seconds and its peak resident megabytes.

    Raises ValueError with the command's last line of complaint when it fails.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=said, stderr=complained)
        _, status, usage = os.wait4(process.pid, 0)  # the usage of this child alone
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (said, complained):
            file.seek(0)
        if process.returncode:
            last = (complained.read().strip().splitlines() or [f"exit code {process.returncode}"])[-1]
            raise ValueError(last.removeprefix("benchmarks/generate.py: ").removeprefix("debias-sd: error: "))
        return said.read(), seconds, usage.ru_maxrss / PEAK_UNITS_PER_MB


def model_arguments(options: argparse.Namespace) -> list[str]:
    return [] if options.base is None else ["--base", options.base]


def measure_picture(options: argparse.Namespace) -> dict[str, object]:
    """One picture in a fresh process."""
    command = [sys.executable, __file__, CHILD, *model_arguments(options), "--rounds", str(options.rounds)]
    said, _, peak = run_measured([*command, "--encoder", options.encoder[-1]])
    found = json.loads(said.splitlines()[-1])
    return found | {
        "picture_seconds": statistics.median(found["warm_seconds"]),
        "cold_seconds": found["import_seconds"] + found["load_seconds"] + found["first_seconds"],
        "peak_mb": peak,
    }


def measure_compare(options: argparse.Namespace) -> dict[str, object]:
    """The whole command `debias-sd compare`."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "compare.png")
        command = [sys.executable, "-m", "debias_sd", "compare", "--encoders", *options.encoder, "--seed", "0"]
        command += [*model_arguments(options), "--out", out, long_prompt()]
        _, seconds, peak = run_measured(command)
        size = Path(out).stat().st_size
    return {"compare_seconds": seconds, "compare_peak_mb": peak, "compare_png_bytes": size}


def describe(report: dict[str, object]) -> str:
    """The report in three lines."""

    def verdict(name: str, unit: str) -> str:
        return f"{report[name]:8.1f} {unit}   goal < {GOALS[name]:g} {unit}: " + (
            "met" if report["goals_met"][name] else "missed"
        )

    width, height = report["size"]
    return "\n".join(
        [
            f"one picture ({width}x{height}, {STEPS} steps, guidance {GUIDANCE:g}, {report['threads']} threads)"
            f"{verdict('picture_seconds', 's')}; cold {report['cold_seconds']:.1f} s = imports "
            f"{report['import_seconds']:.1f} + models {report['load_seconds']:.1f} + picture "
            f"{report['first_seconds']:.1f}",
            f"peak resident memory{verdict('peak_mb', 'MB')}",
            f"debias-sd compare of {len(report['encoders'])}, the whole command"
            f"{verdict('compare_seconds', 's')}; peak {report['compare_peak_mb']:.0f} MB",
        ]
    )


def make_report(options: argparse.Namespace) -> dict[str, object]:
    """All measurements with what they depend on."""
    report = measure_picture(options) | measure_compare(options)
    return report | {
        "kind": "speed and memory of generation",
        "base": options.base or "embedded",
        "encoders": options.encoder,
        "steps": STEPS,
        "guidance_scale": GUIDANCE,
        "goals": GOALS,
        "goals_met": {name: report[name] < goal for name, goal in GOALS.items()},
        "versions": installed_versions(),
    }


def main(arguments: list[str]) -> int:
    """Measure, print, write the report; the exit code is 2 for a user's fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", help="pipeline folder (default: the embedded one)")
    parser.add_argument(
        "--encoder",
        action="append",
        metavar="NAME|FOLDER",
        help="encoder to compare, repeat for more; the last one draws the single picture (default: the embedded three)",
    )
    parser.add_argument("--rounds", type=int, default=5, help="warm pictures")
    parser.add_argument("--out", type=Path, help="JSON report to write")
    parser.add_argument(CHILD, dest="child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.encoder = options.encoder or list(EMBEDDED)
    try:
        if options.rounds < 1:
            raise ValueError(f"--rounds is {options.rounds}, it starts at 1; correct it.")
        if options.child:
            print(json.dumps(draw(options)))
            return 0
        report = make_report(options)
        print(describe(report))
        if options.out is not None:
            write_atomically(options.out, (json.dumps(report, indent=1) + "\n").encode())
    except ValueError as error:
        print(f"benchmarks/generate.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
