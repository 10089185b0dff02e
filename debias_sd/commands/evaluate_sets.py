"""`debias-sd evaluate retrieval --data ...`: encoders on standard sets and users' own."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.commands.arguments import check_least
from debias_sd.commands.generate import device_and_dtype
from debias_sd.commands.terminal import say, warn
from debias_sd.probes import GROUPS

if TYPE_CHECKING:
    from debias_sd.datasets.records import Records
    from debias_sd.measure.embedding import Embedder
    from debias_sd.measure.processes import Processes
    from debias_sd.measure.retrieval import Measured, Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of measuring on sets."""
    group = parser.add_argument_group("retrieval on sets of pictures with captions")
    group.add_argument("--data", action="append", metavar="KIND:PATH", help="a set (default: world); may be repeated")
    group.add_argument("--image-root", metavar="DIR", help="where the names of the pictures start from")
    group.add_argument("--caption-column", metavar="NAME", help="the column of the caption in a table of your own")
    group.add_argument(
        "--probes", nargs="+", metavar="NAME", help=f"probes or groups of them: all, {', '.join(GROUPS)}"
    )
    group.add_argument("--cache", type=Path, metavar="DIR", help="where features are kept (default: the user's cache)")
    group.add_argument("--no-cache", action="store_true", help="embed everything again, keep nothing")
    group.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    group.add_argument(
        "--examples", type=int, default=4, metavar="N", help="worst captions kept with small pictures (default 4)"
    )
    group.add_argument("--samples", type=int, default=1000, help="draws of the 95 %% intervals (default 1000)")


@dataclasses.dataclass(frozen=True)
class Running:
    """The encoders of a command, each with its cache, in this process and those beside it."""

    embedders: dict[str, Embedder]
    processes: Processes
    device: str

    def settings(self) -> dict[str, Any]:
        """What a report says about where the work was done."""
        return {"device": self.device, "processes": self.processes.count}

    def work(self) -> dict[str, dict[str, int]]:
        """How much each encoder embedded, and how much of it was known; said aloud where nothing was kept of it."""
        for name, embedder in self.embedders.items():
            if embedder.cache.fault:
                warn(f"features of {name} were not kept: {embedder.cache.fault}")
        return {n: dataclasses.asdict(e.work) | {"damaged": e.cache.damaged} for n, e in self.embedders.items()}


def start_embedders(encoders: dict[str, str], arguments: argparse.Namespace) -> Running:
    """Load all encoders; ValueError for a device that is not there or an encoder that cannot be measured."""
    from debias_sd.measure.embedding import Embedder
    from debias_sd.measure.processes import Processes
    from debias_sd.measure.towers import load_towers

    check_least("--samples", arguments.samples, "1000")
    device = str(device_and_dtype(arguments)[0])
    processes = Processes.start()
    embedders = {}
    for name, folder in encoders.items():
        towers = load_towers(folder, device=device, use=arguments.kind)
        embedders[name] = Embedder(towers, _cache(towers, arguments), processes)
    processes.gather([None])  # every process has read the cache before the first one adds to it
    return Running(embedders, processes, device)


def measure(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict] | None:
    """Results, settings and the rest of the report; None on every process but the first."""
    from debias_sd.datasets.world import NAME, PROBES

    plan = plan_of(arguments, None if arguments.probes else PROBES)
    asked = arguments.data or [NAME]
    names = [one for name in asked for one in (PROBES if name == NAME else (name,))]
    sets = [open_set(name, arguments) for name in names]
    running = start_embedders(encoders, arguments)
    measured = measure_opened(running, sets, plan)
    running.processes.finish()
    if not running.processes.is_main:
        return None
    return report_parts(running, measured, plan, names=asked, count=arguments.count)


def plan_of(arguments: argparse.Namespace, by_set: Mapping[str, tuple[str, ...]] | None = None) -> Plan:
    """What is measured; `by_set` has the probes of the sets that have their own. ValueError for an unknown probe."""
    from debias_sd.measure.retrieval import Plan
    from debias_sd.probes import probe_names

    check_least("--examples", arguments.examples, "4", least=0)
    probes = tuple(probe_names(arguments.probes or []))
    return Plan(probes, arguments.seed, arguments.samples, by_set or {}, arguments.examples)


def open_set(name: str, arguments: argparse.Namespace) -> Records:
    from debias_sd.datasets.names import open_records
    from debias_sd.datasets.world import COUNT, PROBES, world_records
    from debias_sd.measure.retrieval import first_records

    if name in PROBES:
        return world_records(name, seed=arguments.seed, count=arguments.count or COUNT)
    options = {"image_root": arguments.image_root, "caption_column": arguments.caption_column}
    records = open_records(name, **options)
    return records if arguments.count is None else first_records(records, arguments.count)


def measure_opened(running: Running, sets: list[Records], plan: Plan) -> Measured:
    """Measure encoders on sets that are open; the first process says what makes the numbers other than they seem."""
    from debias_sd.measure.retrieval import measure_sets

    measured = measure_sets(running.embedders, sets, plan, progress=bars(shown=running.processes.is_main))
    if running.processes.is_main:
        for note in measured.notes:
            warn(note)
        _say_scores(measured.encoders)
    return measured


def report_parts(
    running: Running, measured: Measured, plan: Plan, *, names: list[str], count: int | None
) -> tuple[dict, dict, dict]:
    """Results, settings and the rest of the report."""
    from debias_sd.report import relative

    settings = {
        "data": [relative(name) for name in names],
        "count": count,
        "probes": list(plan.probes),
        "samples": plan.samples,
    }
    extra = {"differences": measured.differences, "work": running.work(), "pictures": measured.pictures}
    return measured.encoders, settings | running.settings(), extra


def _cache(towers: Any, arguments: argparse.Namespace) -> Any:
    from hashlib import sha256

    from debias_sd.measure.embedding import FeatureCache, cache_folder, rows_on
    from debias_sd.measure.towers import content_hash
    from debias_sd.report import installed_versions

    versions = installed_versions()
    parts = (content_hash(towers.folder), towers.preprocessing, towers.device, versions["torch"],
             versions["transformers"], versions["machine"], rows_on(towers.device))  # fmt: skip
    folder = None if arguments.no_cache else arguments.cache or cache_folder()
    return FeatureCache(folder, sha256(repr(parts).encode()).hexdigest())


def bars(*, shown: bool) -> Callable[[str, int], Callable[[int], object]]:
    """One bar per task; the next task takes its place."""
    from tqdm import tqdm

    running: list[tqdm] = []

    def start(what: str, total: int) -> Callable[[int], object]:
        for bar in running:
            bar.close()
        running[:] = [tqdm(total=total, desc=what, unit="item", leave=False, disable=not shown)]
        return running[0].update

    return start


def _say_scores(encoders: dict[str, dict[str, Any]]) -> None:
    """One line per encoder and set: R@1 of the captions as they are."""
    for name, result in encoders.items():
        for data, found in result["sets"].items():
            ways = found["probes"]["keep"]
            cells = []
            for way, words in (("t2i", "text to image"), ("i2t", "image to text")):
                low, high = ways[way]["intervals"]["r1"]
                cells.append(f"{words} R@1 {ways[way]['r1']:.2f} (95 %: {low:.2f} to {high:.2f})")
            say(f"{name} on {data}: {', '.join(cells)}")
