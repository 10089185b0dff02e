"""`debias-sd evaluate fidelity`: which sentences of any prompts are in the pictures of any base."""

from __future__ import annotations

import argparse
import functools
import gc
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from debias_sd.commands.arguments import (
    MODEL_JUDGES,
    check_least,
    check_seeds,
    hash_named,
    load_named,
    resolve_guidance,
)
from debias_sd.commands.calibrate import judge_dtype
from debias_sd.commands.evaluate_sets import bars
from debias_sd.commands.generate import DTYPES, device_and_dtype
from debias_sd.commands.terminal import quiet_loading, say, warn
from debias_sd.drawing import FEEDS, USUAL
from debias_sd.text import count_of

if TYPE_CHECKING:
    import torch

    from debias_sd.measure.album import Album, Sampling
    from debias_sd.measure.judges import Judge
    from debias_sd.measure.judging import Judged
    from debias_sd.measure.places import Sentences
    from debias_sd.pipelines.load import DiffusionPipeline

CHECKER = "checker"
OPTIONS = ("--prompts", "--judge", "--calibration", "--seeds", "--pictures")  # of no other kind of measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of judging pictures."""
    group = parser.add_argument_group("fidelity, with any prompts, base and judge")
    group.add_argument("--prompts", metavar="world|FILE", help="text, JSON lines or a folder (default: world)")
    group.add_argument(
        "--judge", action="append", metavar="SPEC", help=f"checker (default), {MODEL_JUDGES}; repeatable"
    )
    group.add_argument(
        "--calibration", action="append", default=[], metavar="REPORT", help="of `debias-sd calibrate`; repeatable"
    )
    group.add_argument("--seeds", type=int, nargs="+", metavar="N", help="pictures of each prompt (default: --seed)")
    group.add_argument(
        "--pictures", type=Path, metavar="DIR", help="keep the pictures; a run goes on with what is there"
    )
    group.add_argument(
        "--batch", type=int, metavar="N", help="at a time (default 1; with the world's prompts or base 25)"
    )
    group.add_argument("--dtype", choices=DTYPES, help="default: float16 on cuda (judges: bfloat16), else float32")
    group.add_argument(
        "--past-77", nargs="+", choices=tuple(FEEDS), default=USUAL,
        help=f"what encoders of 77 tokens do with longer prompts, a row each (default: {' '.join(USUAL)})",
    )  # fmt: skip
    group.add_argument("--no-floor", action="store_true", help="do not judge pictures against other prompts too")


def measure(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict]:
    """Results, settings and the rest of the report. Judges and encoders are loaded once first, for their faults."""
    from debias_sd.drawing import variants_of
    from debias_sd.measure.album import Sampling
    from debias_sd.measure.judging import example_pictures, judge_albums
    from debias_sd.measure.places import sentences_in
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline

    hide_loading_bars()
    quiet_loading()  # again: diffusers, loaded by now, has set its own level
    specs = list(dict.fromkeys(arguments.judge or [CHECKER]))
    if arguments.calibration and specs == [CHECKER]:
        raise ValueError(
            "--calibration is for judges that are models: the checker is exact and has no thresholds to choose; leave "
            f"it out, or give --judge {MODEL_JUDGES}."
        )
    seeds, batch = _seeds(arguments), _batch(arguments)
    texts, prompts = _prompts(arguments)
    device, dtype = device_and_dtype(arguments)
    judges = [_loader(spec, arguments, device) for spec in specs]
    for load in judges:
        _warn_of_marks(load())
    base = load_debias_pipeline(arguments.base, "base", torch_dtype=dtype).to(device)
    _check_judges(arguments, base)
    resolve_guidance(arguments, base)
    sampling = Sampling(arguments.steps, arguments.guidance_scale, batch)
    load = functools.partial(load_named, base=arguments.base, flag="--encoder")
    for name, source in encoders.items():  # faults of one are named before the others are drawn
        variants_of(base, name, load(source), arguments.past_77)
    with tempfile.TemporaryDirectory(prefix="debias-sd-") as scratch:
        sentences, folder = sentences_in(texts, base.tokenizer), arguments.pictures or Path(scratch)
        feeds = arguments.past_77
        albums, drawn = _draw(base, encoders, load, sentences, seeds, sampling, folder=folder, texts=texts, feeds=feeds)
        about = {"scheduler": type(base.scheduler).__name__, "pipeline": type(base).__name__}
        extra = {"examples": example_pictures(albums)}
        if CHECKER in specs and _are_worlds(arguments):
            extra["checker_errors"] = _checker_errors(base, arguments)
        del base  # the judges take its place in memory
        _free(device)
        judged = judge_albums(
            albums, sentences, judges, samples=arguments.samples, floor=not arguments.no_floor,
            start_bar=bars(shown=True),
        )  # fmt: skip
    results = {variant: drawn[variant] | {"judges": scores} for variant, scores in judged.encoders.items()}
    _say_scores(judged, sentences)
    settings = {
        **about, **prompts, "seeds": seeds, "steps": arguments.steps, "guidance": arguments.guidance_scale,
        "batch": batch, "device": device.type, "dtype": str(dtype).removeprefix("torch."),
        "samples": arguments.samples,
    }  # fmt: skip
    extra |= {"judges": judged.judges, "differences_of_pictures": judged.differences, "agreement": judged.agreement}
    return results, settings, extra


def _are_worlds(arguments: argparse.Namespace) -> bool:
    from debias_sd.datasets.world import NAME

    return arguments.prompts in (None, NAME)


def _checker_errors(base: DiffusionPipeline, arguments: argparse.Namespace) -> dict[str, Any]:
    """How often the checker errs on the prompts' own scenes: the ceiling of its scores."""
    from debias_sd.datasets.world import PROMPTS, prompt_set
    from debias_sd.measure.judges.checker import measure_checker

    scenes = prompt_set(arguments.seed, count=arguments.count or PROMPTS).scenes
    return measure_checker(scenes, base.vae, seed=arguments.seed)


def _free(device: torch.device) -> None:
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _loader(spec: str, arguments: argparse.Namespace, device: torch.device) -> Callable[[], Judge]:
    def load() -> Judge:
        from debias_sd.measure.judges import load_judge

        dtype = judge_dtype(arguments.dtype, device)
        return load_judge(spec, device=str(device), dtype=dtype, calibration=arguments.calibration)

    return load


def _warn_of_marks(judge: Judge) -> None:
    from debias_sd.measure.reports.pictures import MEAN_ALONE

    if judge.thresholds.source == type(judge.thresholds)().source:
        warn(f"judge {judge.name} is not calibrated, its marks are a guess: debias-sd calibrate --judge {judge.name}")
    if judge.thresholds.drawn is None:
        warn(f"judge {judge.name} was never sure enough to say drawn in its calibration: {MEAN_ALONE}.")


def _prompts(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The prompts of a file or of the embedded world, and what the report says about them."""
    from debias_sd.datasets.world import NAME, PROMPTS, world_prompts
    from debias_sd.prompts.files import read_prompt_file
    from debias_sd.report import hash_texts

    if _are_worlds(arguments):
        name, lost = NAME, {"empty": 0, "repeated": 0}
        texts = world_prompts(seed=arguments.seed, count=arguments.count or PROMPTS)
    else:
        path = Path(arguments.prompts)
        found = read_prompt_file(path).first(arguments.count)
        name, texts, lost = path.name, found.texts, {"empty": found.empty, "repeated": found.repeated}
        for count, what in ((found.empty, "without text left out"), (found.repeated, "repeated, and kept")):
            if count:
                warn(f"{path}: {count_of(count, 'prompt')} {what}.")
    return texts, {"prompts": name} | lost | {"count": len(texts), "texts_sha256": hash_texts(texts)}


def _check_judges(arguments: argparse.Namespace, base: DiffusionPipeline) -> None:
    """ValueError where the embedded world's prompts or checker are asked for with another base."""
    from debias_sd.comparison import is_checked

    if not is_checked(base) and _are_worlds(arguments):
        raise ValueError(
            "--prompts is not set, and the embedded world's are for a base of its own; give --prompts FILE and "
            f"--judge {MODEL_JUDGES}."
        )
    if not is_checked(base) and (not arguments.judge or CHECKER in arguments.judge):
        raise ValueError(
            "the checker reads pictures of the embedded world alone and this base draws others; give --judge "
            f"{MODEL_JUDGES}."
        )


def _seeds(arguments: argparse.Namespace) -> list[int]:
    from debias_sd.measure.album import LARGEST_SEED

    seeds = arguments.seeds or [arguments.seed]
    check_seeds(seeds, str(LARGEST_SEED), below=LARGEST_SEED + 1)
    return seeds


def _batch(arguments: argparse.Namespace) -> int:
    batch = arguments.batch
    if batch is None:
        batch = 25 if arguments.base is None or _are_worlds(arguments) else 1
    check_least("--batch", batch, "one at a time")
    return batch


def _draw(
    base: DiffusionPipeline, encoders: dict[str, str], load: Callable[[str], Any], sentences: Sentences,
    seeds: list[int], sampling: Sampling, *, folder: Path, texts: list[str], feeds: Collection[str],
) -> tuple[dict[str, Album], dict[str, dict[str, Any]]]:  # fmt: skip
    """The pictures of every variant of every encoder, and what the report says about each."""
    from debias_sd.drawing import variants_of
    from debias_sd.measure.album import PictureStore, common_settings, draw_album, hash_pipeline

    settings = common_settings(steps=sampling.steps, guidance=sampling.guidance, batch=sampling.batch)
    store, start_bar, known = PictureStore(folder, settings), bars(shown=True), WeakKeyDictionary()
    albums, about = {}, {}
    for name, source in encoders.items():
        encoder = load(source)
        weights = hash_named(source, encoder)
        for variant in variants_of(base, name, encoder, feeds).values():
            digest = hash_pipeline(variant.pipe, known)
            step = start_bar(f"pictures of {variant.name}", len(seeds) * len(texts))
            options = {"store": store, "pipeline_sha256": digest, "sampling": sampling, "progress": step}
            album = albums[variant.name] = draw_album(variant, texts, seeds, **options)
            about[variant.name] = {
                "sha256": weights or digest,
                "pipeline_sha256": digest,
                "window": variant.window,
                "in_windows": variant.reading is not None,
                "prompts_past_window": int((sentences.tokens > variant.window).sum()),
                "pictures": {"drawn": album.drawn, "found": album.found, "black": album.black},
            }
            if album.black:
                black = count_of(album.black, "picture")
                warn(f"{variant.name}: {black} all black; a safety checker hides what it objects to.")
    return albums, about


def _say_scores(judged: Judged, sentences: Sentences) -> None:
    """One line per encoder and judge; for a judge that can never say drawn, the share is not a measurement."""
    from debias_sd.measure.reports.pictures import MEAN_ALONE, says_drawn

    if not sentences.is_late.any():
        warn("every prompt is one sentence, so there are no late details; the reports hold the share of all sentences.")
    for variant, by_judge in judged.encoders.items():
        for judge, scores in by_judge.items():
            share = _share(scores) if says_drawn(judged.judges[judge]) else f"late details never drawn, {MEAN_ALONE}"
            say(f"{variant}: {share}, mean score {_number(scores['late_score'])}, by {judge}")
            missed = sum(scores["not_judged"].values())
            if missed:
                asked = count_of(missed + scores["judged"], "sentence")
                warn(f"{judge} could not judge {missed:,} of {asked} of {variant}.")


def _share(scores: dict[str, Any]) -> str:
    interval, floor = scores["late_detail_interval"], scores.get("floor")
    cells = [f"late details drawn {_number(scores['late_detail'])} %"]
    cells += [f" (95 %: {interval[0]:.1f} to {interval[1]:.1f})"] if interval else []
    return "".join([*cells, f", floor {_number(floor['late_detail'])}" if floor else ""])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
