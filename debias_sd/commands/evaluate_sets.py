"""`debias-sd evaluate retrieval --data ...` and `evaluate paper`: encoders on standard sets and users' own."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.commands.terminal import say, warn

if TYPE_CHECKING:
    from debias_sd.datasets.records import Records

KIND = "retrieval-sets"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of measuring on sets."""
    group = parser.add_argument_group("retrieval on sets of pictures with captions")
    group.add_argument("--data", action="append", metavar="KIND:PATH", help="a set, or `world`; may be repeated")
    group.add_argument("--image-root", metavar="DIR", help="where the names of the pictures start from")
    group.add_argument("--caption-column", metavar="NAME", help="the column of the caption in a table of your own")
    group.add_argument(
        "--probes", nargs="+", metavar="NAME", help="probes or groups of them: all, debias, padding, hyfl, length"
    )
    group.add_argument("--cache", type=Path, metavar="DIR", help="where features are kept (default: the user's cache)")
    group.add_argument("--no-cache", action="store_true", help="embed everything again, keep nothing")
    group.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    group.add_argument("--samples", type=int, default=1000, help="draws of the 95 %% intervals (default 1000)")
    group.add_argument("--data-root", type=Path, metavar="DIR", help="paper: the folder with the sets")


def measure(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict] | None:
    """Results, settings and the rest of the report; None on every process but the first."""
    names = arguments.data or ["world"]
    return measure_opened(encoders, [_open(name, arguments) for name in names], arguments, names=names)


def _open(name: str, arguments: argparse.Namespace) -> Records:
    from debias_sd.datasets.names import open_records
    from debias_sd.evaluation.pool import first_records, world_records

    if name == "world":
        return world_records(seed=arguments.seed, families=max(1, (arguments.count or 1000) // 4))
    options = {"image_root": arguments.image_root, "caption_column": arguments.caption_column}
    records = open_records(name, **options)
    return records if arguments.count is None else first_records(records, arguments.count)


def measure_paper(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict] | None:
    """The sets of the published tables that lie below `--data-root`; see `measure`."""
    from debias_sd.evaluation.paper import PROBES, find_sets
    from debias_sd.evaluation.pool import first_records

    if arguments.data_root is None:
        raise ValueError("--data-root is not set, paper needs the folder that holds the sets; name it.")
    found = find_sets(arguments.data_root)
    sets = list(found.sets.values())
    if arguments.count is not None:
        sets = [first_records(records, arguments.count) for records in sets]
    measured = measure_opened(encoders, sets, arguments, names=list(found.sets), by_set=PROBES)
    if measured is not None:
        for kind, reason in found.missing.items():
            warn(f"{kind} was not measured: {reason}")
        measured[2]["missing"] = found.missing
    return measured


def measure_opened(
    encoders: dict[str, str],
    sets: list[Records],
    arguments: argparse.Namespace,
    *,
    names: list[str],
    by_set: Mapping[str, tuple[str, ...]] | None = None,
) -> tuple[dict, dict, dict] | None:
    """Measure encoders on sets that are open, under the probes of `by_set` where it names the set; see `measure`."""
    import torch

    from debias_sd.evaluation.embedding import Embedder
    from debias_sd.evaluation.measure import Plan, measure_sets
    from debias_sd.evaluation.processes import Processes
    from debias_sd.evaluation.towers import load_towers
    from debias_sd.probes import probe_names

    plan = Plan(tuple(probe_names(arguments.probes or [])), arguments.seed, arguments.samples, by_set or {})
    if plan.samples < 1:
        raise ValueError(f"--samples is {plan.samples}, it must be 1 or more; leave it out for 1000.")
    device = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device is {device}, and torch sees no such device here; use cpu.")
    processes = Processes.start()
    embedders = {}
    for name, folder in encoders.items():
        towers = load_towers(folder, device=device)
        embedders[name] = Embedder(towers, _cache(towers, arguments), processes)
    processes.gather([None])  # every process has read the cache before the first one adds to it
    measured = measure_sets(embedders, sets, plan, progress=_bars(shown=processes.is_main))
    processes.finish()
    if not processes.is_main:
        return None
    for note in measured.notes:
        warn(note)
    _say_scores(measured.encoders)
    settings = {
        "data": [_inside(name) for name in names],
        "count": arguments.count,
        "probes": list(plan.probes),
        "samples": plan.samples,
        "device": device,
        "processes": processes.count,
    }
    work = {name: dataclasses.asdict(e.work) | {"damaged": e.cache.damaged} for name, e in embedders.items()}
    return measured.encoders, settings, {"differences": measured.differences, "work": work}


def _inside(name: str) -> str:
    """A path inside the working folder as a relative one: a report is read on other machines."""
    return name.replace(f"{Path.cwd()}/", "")


def _cache(towers: Any, arguments: argparse.Namespace) -> Any:
    from hashlib import sha256

    from debias_sd.evaluation.cache import FeatureCache, cache_folder
    from debias_sd.evaluation.embedding import rows_on
    from debias_sd.evaluation.towers import content_hash
    from debias_sd.report import installed_versions

    versions = installed_versions()
    parts = (content_hash(towers.folder), towers.preprocessing, towers.device, versions["torch"],
             versions["transformers"], versions["machine"], rows_on(towers.device))  # fmt: skip
    folder = None if arguments.no_cache else arguments.cache or cache_folder()
    return FeatureCache(folder, sha256(repr(parts).encode()).hexdigest())


def _bars(*, shown: bool) -> Callable[[str, int], Callable[[int], object]]:
    """One bar a task; the next task takes its place."""
    from tqdm import tqdm

    running: list[tqdm] = []

    def start(what: str, total: int) -> Callable[[int], object]:
        for bar in running:
            bar.close()
        running[:] = [tqdm(total=total, desc=what, unit="item", leave=False, disable=not shown)]
        return running[0].update

    return start


def _say_scores(encoders: dict[str, dict[str, Any]]) -> None:
    """One line an encoder and set: R@1 of the captions as they are."""
    for name, result in encoders.items():
        for data, found in result["sets"].items():
            ways = found["probes"]["keep"]
            cells = []
            for way, words in (("t2i", "text to image"), ("i2t", "image to text")):
                low, high = ways[way]["intervals"]["r1"]
                cells.append(f"{words} R@1 {ways[way]['r1']:.2f} (95 %: {low:.2f} to {high:.2f})")
            say(f"{name} on {data}: {', '.join(cells)}")


def say_tables(path: Path) -> None:
    """The published tables of which something was measured, ours beside them, in Markdown."""
    from debias_sd.report_tables import published_comparisons, read_entries

    say("\n".join(table.as_markdown() for table in published_comparisons(read_entries([path]))))
