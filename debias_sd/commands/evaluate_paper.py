"""`debias-sd evaluate paper`: every published table and figure of which the data is on disk, ours beside them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from debias_sd.commands import evaluate_reading, evaluate_sets
from debias_sd.commands.terminal import say, warn

# What an encoder reads by place is measured on the first of these that is there: long captions.
READ = ("docci", "urban1k", "dci", "sharegpt4v-1k")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `evaluate paper`."""
    parser.add_argument("--data-root", type=Path, metavar="DIR", help="paper: the folder with the sets")


def measure(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict] | None:
    """Results, settings and the rest of the report; None on every process but the first."""
    from debias_sd.measure.retrieval.paper import PROBES, find_sets
    from debias_sd.measure.retrieval.pool import first_records

    if arguments.data_root is None:
        raise ValueError("--data-root is not set, paper needs the folder that holds the sets; name it.")
    found = find_sets(arguments.data_root)
    sets = found.sets
    if arguments.count is not None:
        sets = {name: first_records(records, arguments.count) for name, records in sets.items()}
    plan = evaluate_sets.plan_of(arguments, PROBES)
    running = evaluate_sets.start_embedders(encoders, arguments)
    measured = evaluate_sets.measure_opened(running, list(sets.values()), plan)
    read = _read(running, {records.name: records for records in sets.values()}, arguments)
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


def _read(running: evaluate_sets.Running, sets: dict[str, Any], arguments: argparse.Namespace) -> Any:
    """The name of the first set of READ that is there and what was read of it; None, said aloud, without one."""
    from debias_sd.measure.reading.by_place import COUNT

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


def say_tables(path: Path) -> None:
    """The published tables of which something was measured, ours beside them, in Markdown."""
    from debias_sd.measure.reports.tables import published_comparisons, read_entries

    say("\n".join(table.as_markdown() for table in published_comparisons(read_entries([path]))))
