"""`debias-sd evaluate retrieval|attention|fidelity|paper`: measure encoders, write a JSON report.

On sets of pictures with captions (`--data`), captions, or prompts (`--prompts`) and judges; on the embedded world's
where none is named. `paper`: on all sets of the published tables that lie below `--data-root`, with the published
numbers beside ours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from debias_sd.commands import evaluate_pictures, evaluate_reading, evaluate_sets
from debias_sd.commands.arguments import (
    SOURCE,
    STRETCHED,
    add_sampling_arguments,
    check_least,
    check_spelling,
    read_names,
    resolve_sampling,
)
from debias_sd.commands.terminal import quiet_loading, say, warn
from debias_sd.drawing import OWN_READINGS

Measure = Callable[[dict[str, str], argparse.Namespace], "tuple[dict, dict, dict] | None"]
KINDS = ("retrieval", "attention", "fidelity", "paper")
# What an encoder reads by place is measured on the first of these that is there: long captions.
READ = ("docci", "urban1k", "dci", "sharegpt4v-1k")
HELP = "measure encoders on held-out scenes or sets of pictures and write a JSON report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd evaluate`."""
    parser.add_argument("kind", choices=KINDS, help="what to measure")
    parser.add_argument(
        "--encoder",
        action="extend",
        nargs="+",
        required=True,
        metavar=f"[NAME=]{SOURCE}",
        help="encoders to measure, named <recipe>-s<training seed>, e.g. debias-l0.1-s0=runs/debias; fidelity also "
        "takes base (the pipeline's own) and stretched (its own, lengthened without training)",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the held-out set (default 0)")
    parser.add_argument(
        "--count",
        type=int,
        help="pictures of a set, or prompts (default: all; of the world 1,000 and 200)",
    )
    parser.add_argument("--base", help="fidelity: pipeline folder (default: the embedded one)")
    add_sampling_arguments(parser)
    evaluate_sets.add_arguments(parser)
    evaluate_reading.add_arguments(parser)
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="paper: the folder with the sets")
    evaluate_pictures.add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="JSON report to write")


def _check_sources(encoders: dict[str, str], kind: str) -> None:
    """ValueError for a name that means nothing here: a misspelt one, or a pipeline's encoder without a pipeline."""
    for source in encoders.values():
        check_spelling(source, flag="--encoder")
        if source in (STRETCHED, *OWN_READINGS) and kind != "fidelity":
            raise ValueError(
                f"--encoder is {source!r}, the encoder of a pipeline, and {kind} has none; give a folder, such as "
                "debias-sd convert --stretch writes."
            )


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the report, return the exit code."""
    from debias_sd.report import Report, check_writable, command_line

    encoders = read_names(arguments.encoder, flag="--encoder")
    _check_sources(encoders, arguments.kind)
    check_least("--count", arguments.count, "the published number")
    resolve_sampling(arguments)
    kind, measure = _measure_of(arguments)
    check_writable(arguments.out)
    quiet_loading()
    started = time.perf_counter()
    measured = measure(encoders, arguments)
    if measured is None:  # another process of this run writes the report
        return 0
    results, settings, extra = measured
    report = Report(
        kind=kind,
        settings={"seed": arguments.seed} | settings,
        encoders=results,
        command=command_line(),
        seconds=round(time.perf_counter() - started, 1),
        extra=extra,
    )
    report.write(arguments.out)
    if arguments.kind == "paper":
        _say_tables(arguments.out)
    say(f"{arguments.out}: {arguments.kind} of {', '.join(results)}, {report.seconds:.0f} s")
    return 0


def _measure_of(arguments: argparse.Namespace) -> tuple[str, Measure]:
    """The report's kind and what measures it; ValueError for an option that belongs to another kind."""
    from debias_sd.report import ATTENTION, FIDELITY, RETRIEVAL

    options = {"--data": ("retrieval", "attention"), "--probes": ("retrieval",), "--captions": ("attention",)}
    options |= dict.fromkeys(evaluate_pictures.OPTIONS, ("fidelity",))
    for option, kinds in options.items():
        if getattr(arguments, option[2:]) and arguments.kind not in kinds:
            raise ValueError(f"{option} is for {' and '.join(kinds)}, not for {arguments.kind}; leave it out.")
    return {
        "retrieval": (RETRIEVAL, evaluate_sets.measure),
        "attention": (ATTENTION, evaluate_reading.measure),
        "fidelity": (FIDELITY, evaluate_pictures.measure),
        "paper": (RETRIEVAL, measure_paper),
    }[arguments.kind]


def measure_paper(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict] | None:
    """Results, settings and the rest of the report; None on every process but the first."""
    from debias_sd.datasets.names import EVALUATION_KINDS, find_sets
    from debias_sd.measure.retrieval import first_records
    from debias_sd.probes import GROUPS

    if arguments.data_root is None:
        raise ValueError("--data-root is not set but paper needs the folder that holds the sets; name it.")
    found = find_sets(arguments.data_root)
    sets = found.sets
    if arguments.count is not None:
        sets = {name: first_records(records, arguments.count) for name, records in sets.items()}
    # On DOCCI the paper's robustness tables and the sentences in front.
    probes = {kind: ("keep",) for kind in EVALUATION_KINDS} | {"docci": (*GROUPS["debias"], *GROUPS["padding"])}
    plan = evaluate_sets.plan_of(arguments, probes)
    running = evaluate_sets.start_embedders(encoders, arguments)
    measured = evaluate_sets.measure_opened(running, list(sets.values()), plan)
    read = _read_paper(running, {records.name: records for records in sets.values()}, arguments)
    running.processes.finish()
    if not running.processes.is_main:
        return None
    parts = evaluate_sets.report_parts(running, measured, plan, names=list(sets), count=arguments.count)
    if read is not None:
        label, results = read
        for name, result in results.encoders.items():
            parts[0][name]["reading"] = {label: result}
        parts[2]["reading_differences"] = {label: results.differences}
    for kind, reason in found.missing.items():
        warn(f"{kind} was not measured: {reason}")
    parts[2]["missing"] = found.missing
    return parts


def _read_paper(running: evaluate_sets.Running, sets: dict[str, Any], arguments: argparse.Namespace) -> Any:
    """The name of the first set of READ that is there and what was read of it; None, said aloud, without one."""
    from debias_sd.measure.reading import COUNT

    label = next((name for name in READ if name in sets), None)
    if label is not None:
        captions = evaluate_reading.captions_in(sets[label], arguments.count or COUNT)
        try:
            return label, evaluate_reading.read_set(running, captions, label, arguments)
        except ValueError as error:
            if running.processes.is_main:
                warn(f"attention by place was not measured: {error}")
    elif running.processes.is_main:
        warn(f"attention by place was not measured: none of {', '.join(READ)} is there.")
    return None


def _say_tables(path: Path) -> None:
    """The published tables of which something was measured, ours beside them, in Markdown."""
    from debias_sd.measure.reports.page import read_entries
    from debias_sd.measure.reports.retrieval import published_comparisons

    say("\n".join(table.as_markdown() for table in published_comparisons(read_entries([path]))))
