"""`debias-sd evaluate retrieval|attention|fidelity|paper`: measure encoders, write a JSON report.

On held-out scenes of the embedded world; retrieval on sets of pictures with captions (`--data`) as well; `paper`: on
all sets of the published tables that lie below `--data-root`, with the published numbers beside ours.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from debias_sd.commands import evaluate_paper, evaluate_pictures, evaluate_reading, evaluate_sets
from debias_sd.commands.encoder_names import SOURCE, STRETCHED, check_spelling, hash_named, load_named, read_names
from debias_sd.commands.sampling import add_sampling_arguments, settle_guidance, settle_sampling

Measure = Callable[[dict[str, str], argparse.Namespace], "tuple[dict, dict, dict] | None"]
KINDS = ("retrieval", "attention", "fidelity", "paper")
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
    parser.add_argument("--count", type=int, help="captions or prompts to measure (default: the published number)")
    parser.add_argument("--base", help="fidelity: pipeline folder (default: the embedded one)")
    add_sampling_arguments(parser)
    evaluate_sets.add_arguments(parser)
    evaluate_reading.add_arguments(parser)
    evaluate_paper.add_arguments(parser)
    evaluate_pictures.add_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, help="JSON report to write")


def _check_sources(encoders: dict[str, str], kind: str) -> None:
    """ValueError for a name that means nothing here: a misspelt one, or a pipeline's encoder without a pipeline."""
    for source in encoders.values():
        check_spelling(source, flag="--encoder")
        if source == STRETCHED and kind != "fidelity":
            raise ValueError(
                f"--encoder is {STRETCHED!r}, the encoder of a pipeline, and {kind} has none; give a folder, such as "
                "debias-sd convert --stretch writes."
            )


def run(arguments: argparse.Namespace) -> int:
    """Measure, write the report, return the exit code."""
    from debias_sd.commands.terminal import quiet_loading, say
    from debias_sd.report import Report, check_writable

    encoders = read_names(arguments.encoder, flag="--encoder")
    _check_sources(encoders, arguments.kind)
    if arguments.count is not None and arguments.count < 1:
        raise ValueError(f"--count is {arguments.count}, it must be 1 or more; leave it out for the published number.")
    settle_sampling(arguments)
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
        command=_command(),
        seconds=round(time.perf_counter() - started, 1),
        extra=extra,
    )
    report.write(arguments.out)
    if arguments.kind == "paper":
        evaluate_paper.say_tables(arguments.out)
    say(f"{arguments.out}: {arguments.kind} of {', '.join(results)}, {report.seconds:.0f} s")
    return 0


def _measure_of(arguments: argparse.Namespace) -> tuple[str, Measure]:
    """The report's kind and what measures it; ValueError for an option that belongs to another kind."""
    options = {"--data": ("retrieval", "attention"), "--probes": ("retrieval",), "--captions": ("attention",)}
    options |= dict.fromkeys(evaluate_pictures.OPTIONS, ("fidelity",))
    for option, kinds in options.items():
        if getattr(arguments, option[2:]) and arguments.kind not in kinds:
            raise ValueError(f"{option} is for {' and '.join(kinds)}, {arguments.kind} has none; leave it out.")
    if arguments.kind == "paper":
        return evaluate_sets.KIND, evaluate_paper.measure
    if arguments.kind == "retrieval" and (arguments.data or arguments.probes):
        return evaluate_sets.KIND, evaluate_sets.measure
    if arguments.kind == "attention" and (arguments.data or arguments.captions):
        return evaluate_reading.KIND, evaluate_reading.measure
    if arguments.kind == "fidelity" and evaluate_pictures.is_asked_for(arguments):
        return evaluate_pictures.KIND, evaluate_pictures.measure
    return arguments.kind, {"retrieval": _retrieval, "attention": _attention, "fidelity": _fidelity}[arguments.kind]


def _command() -> str:
    """The command as typed, with paths inside the working folder relative: a report is read on other machines."""
    return "debias-sd " + " ".join(sys.argv[1:]).replace(f"{Path.cwd()}/", "")


def _retrieval(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict]:
    from tqdm import tqdm

    from debias_sd.retrieval import evaluate_retrieval, load_dual_encoder

    sizes = {} if arguments.count is None else {"families": max(1, arguments.count // 4), "short": arguments.count}
    loaded = {name: load_dual_encoder(folder) for name, folder in encoders.items()}
    results = {}
    for name, encoder in tqdm(loaded.items(), desc="retrieval", unit="encoder"):
        results[name] = evaluate_retrieval(encoder, seed=arguments.seed, **sizes)
    return results, {"count": arguments.count or 1000}, {}


def _attention(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict]:
    from tqdm import tqdm

    from debias_sd.attention import evaluate_attention
    from debias_sd.retrieval import load_dual_encoder

    count = arguments.count or 200
    loaded = {name: load_dual_encoder(folder, attention="eager", use="attention") for name, folder in encoders.items()}
    results = {}
    for name, encoder in tqdm(loaded.items(), desc="attention", unit="encoder"):
        results[name] = evaluate_attention(encoder, seed=arguments.seed, count=count)
    return results, {"count": count}, {}


def _fidelity(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict]:
    from tqdm import tqdm

    from debias_sd.comparison import is_checked
    from debias_sd.fidelity import evaluate_fidelity, ways_of
    from debias_sd.generation.store import hash_pipeline
    from debias_sd.judges.checker_error import measure_checker
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline
    from debias_sd.shapes.heldout import prompt_set

    hide_loading_bars()
    sources = {n: load_named(source, base=arguments.base, flag="--encoder") for n, source in encoders.items()}
    base = load_debias_pipeline(arguments.base, "base")
    settle_guidance(arguments, base)
    if not is_checked(base):
        raise ValueError(
            "pictures of this base are not the embedded world's, which the checker reads; give --prompts FILE and "
            "--judge clip:FOLDER_OR_ID or vqa:FOLDER_OR_ID."
        )
    prompts = prompt_set(arguments.seed, count=arguments.count or 200)
    ways, hashes, parts = {}, {}, {}
    for name, encoder in sources.items():
        for way in ways_of(base, name, encoder):
            ways[way.name] = way
            digest = hash_pipeline(way.pipe, parts)
            hashes[way.name] = {"sha256": hash_named(encoders[name], encoder) or digest, "pipeline_sha256": digest}
    options = {"steps": arguments.steps, "guidance": arguments.guidance_scale}
    results = {}
    with tqdm(total=len(ways) * len(prompts.captions), desc="pictures", unit="picture") as bar:
        for name, way in ways.items():
            bar.set_postfix_str(name)
            measured = evaluate_fidelity(way, prompts, seed=arguments.seed, **options, progress=bar.update)
            results[name] = hashes[name] | measured
    settings = {"count": len(prompts.captions), "scheduler": type(base.scheduler).__name__, **options}
    return results, settings, {"checker": measure_checker(prompts.scenes, base.vae, seed=arguments.seed)}
