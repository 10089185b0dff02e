"""`debias-sd calibrate`: how far a judge of pictures can be trusted, on pictures whose content is known.

The report holds its thresholds: give it to `debias-sd evaluate fidelity --calibration`.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.commands.arguments import MODEL_JUDGES, check_least
from debias_sd.commands.generate import DTYPES, device_and_dtype
from debias_sd.commands.terminal import quiet_loading, say, warn
from debias_sd.text import count_of

if TYPE_CHECKING:
    import torch

    from debias_sd.measure.judges.known import Known

HELP = "measure a judge of pictures where the content is known, and choose its thresholds"
WORLD = "world"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd calibrate`."""
    parser.add_argument(
        "--judge",
        action="append",
        required=True,
        metavar="SPEC",
        help=f"{MODEL_JUDGES}, or checker; repeatable",
    )
    parser.add_argument(
        "--known",
        default=WORLD,
        metavar="world|FILE",
        help='the embedded world (default), or JSON lines {"image": ..., "true": [...], "false": [...]}',
    )
    parser.add_argument("--image-root", metavar="DIR", help="where the names of the pictures start from")
    parser.add_argument("--count", type=int, metavar="N", help="pictures of the world (default 200), or the first N")
    parser.add_argument("--seed", type=int, default=0, help="of the world's pictures and of the halves (default 0)")
    parser.add_argument(
        "--sure", type=float, default=0.8, help="share that must be right past a threshold (default 0.8)"
    )
    parser.add_argument("--samples", type=int, default=1000, help="draws of the 95 %% intervals (default 1000)")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="of vqa judges; default: bfloat16 on cuda, else float32")
    parser.add_argument("--out", type=Path, required=True, help="JSON report to write")


def run(arguments: argparse.Namespace) -> int:
    """Measure every judge, write the report; ValueError for every fault of the user's."""
    from tqdm import tqdm

    from debias_sd.measure.judges import load_judge
    from debias_sd.measure.judges.calibration import calibrate
    from debias_sd.report import JUDGE, Report, check_writable, command_line

    _check(arguments)
    check_writable(arguments.out)
    quiet_loading()
    started = time.perf_counter()
    known, (device, _) = _known(arguments), device_and_dtype(arguments)
    results: dict[str, Any] = {}
    for spec in dict.fromkeys(arguments.judge):
        judge = load_judge(spec, device=str(device), dtype=judge_dtype(arguments.dtype, device))
        options = {"seed": arguments.seed, "sure": arguments.sure, "samples": arguments.samples}
        with tqdm(total=len(known.pictures), desc=judge.name, unit="picture", leave=False) as bar:
            results[judge.name] = calibrate(judge, known, **options, progress=bar.update)
    settings = {"seed": arguments.seed, "sure": arguments.sure, "samples": arguments.samples, "device": device.type}
    seconds = round(time.perf_counter() - started, 1)
    Report(JUDGE, settings | known.describe(), results, command=command_line(), seconds=seconds).write(arguments.out)
    for name, found in results.items():
        _say(name, found)
    say(f"{arguments.out}: calibration of {', '.join(results)}, {seconds:.0f} s")
    return 0


def judge_dtype(name: str | None, device: torch.device) -> torch.dtype:
    """The dtype of a judge that answers questions: on a GPU bfloat16, for float16 overflows in many of them."""
    import torch

    return getattr(torch, name or ("bfloat16" if device.type == "cuda" else "float32"))


def _check(arguments: argparse.Namespace) -> None:
    """ValueError for settings that would fail only after the work."""
    check_least("--count", arguments.count, "200", least=4)
    if not 0.5 < arguments.sure < 1:
        raise ValueError(f"--sure is {arguments.sure} but must be between 0.5 and 1; leave it out for 0.8.")
    check_least("--samples", arguments.samples, "1000")
    if not 0 <= arguments.seed < 2**63:
        raise ValueError(f"--seed is {arguments.seed} but must be from 0 to 2**63 - 1.")


def _known(arguments: argparse.Namespace) -> Known:
    from debias_sd.datasets.records import describe_counts
    from debias_sd.measure.judges.known import read_known, world_pictures

    if arguments.known == WORLD:
        return world_pictures(seed=arguments.seed, count=arguments.count or 200)
    known = read_known(arguments.known, image_root=arguments.image_root, count=arguments.count)
    if known.left_out:
        warn(f"{arguments.known}: left out {describe_counts(known.left_out)}.")
    return known


def _say(name: str, found: dict[str, Any]) -> None:
    low, high = found["auc_interval"] or (float("nan"),) * 2
    say(
        f"{name}: AUC {found['auc']:.3f} (95 %: {low:.3f} to {high:.3f}), in other pictures "
        f"{found['floor']['auc']:.3f}; accuracy {100 * found['accuracy']:.1f} %"
    )
    for mark, is_right in (("drawn", "true"), ("missing", "false")):
        threshold = found["thresholds"][mark]
        if threshold is None:
            warn(f"{name} is never sure enough to say {mark}.")
        else:
            share = found[f"{mark}_that_is_{is_right}"]
            words = "never said" if share is None else f"{share:.1f} % of them {is_right}"
            say(f"  {mark} {'from' if mark == 'drawn' else 'below'} {threshold:.3f}: {words}")
    missed = sum(found["not_judged"].values())
    if missed:
        warn(f"{name} could not judge {missed:,} of {count_of(missed + found['claims_judged'], 'sentence')}.")
