"""`debias-sd evaluate attention`: what encoders read of texts of any kind, by place."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from debias_sd.commands import evaluate_sets
from debias_sd.commands.terminal import say, warn
from debias_sd.text import count_of


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of reading by place."""
    group = parser.add_argument_group("attention and sensitivity on texts of your own")
    group.add_argument(
        "--captions", action="append", type=Path, metavar="FILE", help="text, JSON lines or a folder; may be repeated"
    )


def measure(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict] | None:
    """Results, settings and the rest of the report; None on every process but the first."""
    from debias_sd.measure.reading import COUNT
    from debias_sd.report import relative

    count = arguments.count or COUNT
    sets = _captions_of(arguments, count)
    running = evaluate_sets.start_embedders(encoders, arguments)
    results: dict[str, dict[str, Any]] = {}
    extra: dict[str, Any] = {"reading_differences": {}}
    for label, captions in sets.items():
        _add(results, extra, read_set(running, captions, label, arguments), label, running)
    running.processes.finish()
    if not running.processes.is_main:
        return None
    names = [*_data_of(arguments), *map(str, arguments.captions or [])]
    settings = {"data": [relative(name) for name in names], "count": count, "samples": arguments.samples}
    return results, settings | running.settings(), extra | {"work": running.work()}


def read_set(running: evaluate_sets.Running, captions: list[str], label: str, arguments: argparse.Namespace) -> Any:
    """Measure one set, and say what makes its numbers other than they seem."""
    from debias_sd.measure.reading import measure_reading

    progress = evaluate_sets.bars(shown=running.processes.is_main)
    options = {"label": label, "seed": arguments.seed, "samples": arguments.samples}
    read = measure_reading(running.embedders, captions, **options, progress=progress)
    if running.processes.is_main:
        for note in read.notes:
            warn(note)
        for name, result in read.encoders.items():
            say(f"{name} on {label}: {_late(result)}")
    return read


def _add(results: dict, extra: dict, read: Any, label: str, running: evaluate_sets.Running) -> None:
    from debias_sd.measure.towers import describe_towers

    for name, result in read.encoders.items():
        if name not in results:
            results[name] = describe_towers(running.embedders[name].towers) | {"reading": {}}
        results[name]["reading"][label] = result
    extra["reading_differences"][label] = read.differences


def _data_of(arguments: argparse.Namespace) -> list[str]:
    """The sets that are named; the embedded world's captions where nothing is."""
    from debias_sd.datasets.world import NAME

    return arguments.data or ([] if arguments.captions else [NAME])


def _captions_of(arguments: argparse.Namespace, count: int) -> dict[str, list[str]]:
    """The first `count` captions of every set, by its name."""
    from debias_sd.datasets.world import NAME, world_prompts
    from debias_sd.prompts.files import read_prompt_file

    sets: dict[str, list[str]] = {}
    for name in _data_of(arguments):
        if name == NAME:
            sets[_free(name, sets)] = world_prompts(seed=arguments.seed, count=count)
            continue
        records = evaluate_sets.open_set(name, arguments)
        label = _free(records.name, sets)
        sets[label] = captions_in(records, count)
    for path in arguments.captions or []:
        found = read_prompt_file(path)
        if found.empty:
            warn(f"{path}: {count_of(found.empty, 'caption')} without text left out.")
        sets[_free(path.stem, sets)] = found.first(count).texts
    return sets


def captions_in(records: Any, count: int) -> list[str]:
    """The first `count` captions of a set; its pictures are not opened."""
    captions: list[str] = []
    for number in range(len(records)):
        captions += [text.encode("utf-8", "replace").decode() for text in records[number].captions]
        if len(captions) >= count:
            break
    return captions[:count]


def _free(name: str, taken: dict[str, list[str]]) -> str:
    return next(label for label in (name, *(f"{name}-{number}" for number in range(2, 99))) if label not in taken)


def _late(result: dict[str, Any]) -> str:
    """One line: how much the last quarter weighs against the average place."""
    parts = []
    found = {
        "attention": result["attention"]["relative_all_layers"],
        "sentence dropped": result["drop"]["relative"],
        "word swapped": result["swap"]["relative"],
    }
    for words, measured in found.items():
        last = measured["by_quarter"]
        if last["places"] and last["places"][-1] == "4":
            parts.append(f"{words} {last['mean'][-1]:.2f}")
    if not parts:
        return "no caption has four sentences, so there is no last quarter; the report has the places that are there"
    return "last quarter against an average place (1): " + ", ".join(parts)
