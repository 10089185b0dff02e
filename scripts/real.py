"""One command for a machine with a GPU: `python scripts/real.py --base BASE --texts FILE --prompts FILE --out DIR`.

Lengthens the text encoders of a Stable Diffusion pipeline on the texts, draws the prompts in every way (cut, chunked,
by sentences, lengthened, and with each encoder that `--encoders` names), judges the pictures, and writes `DIR/table.md`
with the time and the memory of each part. What is there is not made again: call it once more to go on.

The rows that others have published on DetailMaster (arXiv 2505.16915; with Stable Diffusion 1.5's UNet, as
arXiv 2505.16915 and PRISM give them) stand below ours: they are that benchmark's own prompts and judge.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from debias_sd.report import write_atomically  # noqa: E402

# Presence of characters, location, spatial relations, in percent.
PUBLISHED = {
    "Stable Diffusion 1.5": (19.12, 8.66, 24.53),
    "ELLA": (25.57, 15.04, 69.15),
    "LongAlign": (25.88, 14.12, 78.60),
    "PRISM, N times the cost of a step": (28.21, 16.57, 82.45),
}


def run(command: list[str], *, log: dict[str, Any], name: str) -> None:
    """Run `debias-sd ...`, note its seconds and the largest process so far; SystemExit with its code where it fails."""
    started = time.monotonic()
    code = subprocess.run([sys.executable, "-m", "debias_sd", *command], cwd=ROOT).returncode
    if code:
        raise SystemExit(code)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 2**30
    log[name] = {"seconds": round(time.monotonic() - started, 1), "peak_gib_of_memory_so_far": round(peak, 2)}


def table_of(report: dict[str, Any], log: dict[str, Any]) -> str:
    """Markdown: a row per way, a column per judge; what each part took; the published rows."""
    judges = list(next(iter(report["encoders"].values()))["judges"])
    lines = [f"| way | {' | '.join(f'late details, {judge}' for judge in judges)} |", "|---" * (len(judges) + 1) + "|"]
    for name, encoder in report["encoders"].items():
        cells = (_cell(encoder["judges"][judge]) for judge in judges)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| part | seconds | memory so far, GiB |", "|---|---|---|"]
    lines += [f"| {name} | {row['seconds']} | {row['peak_gib_of_memory_so_far']} |" for name, row in log.items()]
    lines += ["", "Published, DetailMaster with Stable Diffusion 1.5's UNet, another judge and other prompts:", ""]
    lines += ["| way | presence | location | spatial |", "|---|---|---|---|"]
    lines += [f"| {name} | {' | '.join(map(str, row))} |" for name, row in PUBLISHED.items()]
    return "\n".join(lines) + "\n"


def _cell(scores: dict[str, Any]) -> str:
    if scores["late_detail"] is None:
        return "–"
    low, high = scores["late_detail_interval"]
    return f"{scores['late_detail']:.1f} ({low:.1f} to {high:.1f})"


def main(arguments: list[str]) -> int:
    """Lengthen, draw and judge, write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="pipeline: folder or hub id")
    parser.add_argument("--texts", required=True, help="what the encoders are lengthened on")
    parser.add_argument("--prompts", required=True, help="what is drawn: a text a line or JSON lines; or world")
    parser.add_argument("--judge", nargs="+", required=True, help="as `debias-sd evaluate fidelity --judge` takes it")
    parser.add_argument("--encoders", nargs="*", default=[], metavar="NAME=FOLDER", help="Long-CLIP, DeBias-CLIP, ...")
    parser.add_argument("--out", type=Path, required=True, help="folder of encoders, pictures, report and table")
    parser.add_argument(
        "--lengthen", default="", metavar="OPTIONS", help='more for `debias-sd lengthen`: "--steps 100"'
    )
    parser.add_argument("--draw", default="", metavar="OPTIONS", help='more for `evaluate fidelity`: "--count 50"')
    options = parser.parse_args(arguments)
    log_file, report = options.out / "log.json", options.out / "report.json"
    log = json.loads(log_file.read_text()) if log_file.is_file() else {}
    if not (options.out / "lengthened" / "config.json").is_file() or "lengthen" not in log:
        given = ["--base", options.base, "--texts", options.texts, "--out", str(options.out / "lengthened"), "--resume"]
        run(["lengthen", *given, *options.lengthen.split()], log=log, name="lengthen")
        write_atomically(log_file, json.dumps(log).encode())
    named = ["base", f"lengthened={options.out / 'lengthened'}", *options.encoders]
    judges = [part for judge in options.judge for part in ("--judge", judge)]
    given = ["--base", options.base, "--encoder", *named, "--past-77", "cut", "windows", "sentences"]
    given += ["--prompts", options.prompts, *judges, "--pictures", str(options.out / "pictures"), "--out", str(report)]
    run(["evaluate", "fidelity", *given, *options.draw.split()], log=log, name="draw and judge")
    table = table_of(json.loads(report.read_text(encoding="utf-8")), log)
    write_atomically(log_file, json.dumps(log).encode())
    write_atomically(options.out / "table.md", table.encode())
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
