"""`debias-sd evaluate fidelity --prompts|--judge`: which sentences of any prompts are in the pictures of any base."""

from __future__ import annotations

import argparse
import functools
import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from debias_sd.commands.calibrate import judge_dtype
from debias_sd.commands.encoder_names import hash_named, load_named
from debias_sd.commands.generate import DTYPES, device_and_dtype
from debias_sd.commands.sampling import settle_guidance
from debias_sd.commands.terminal import quiet_loading, say, warn
from debias_sd.counts import count_of

if TYPE_CHECKING:
    import torch

    from debias_sd.encoder import TextEncoder
    from debias_sd.fidelity import Way
    from debias_sd.generation.drawing import Album, Sampling
    from debias_sd.generation.measure import Judged
    from debias_sd.generation.sentences import Sentences
    from debias_sd.judges import Judge
    from debias_sd.pipelines.load import DiffusionPipeline

KIND = "fidelity-judged"
CHECKER = "checker"
OPTIONS = ("--prompts", "--judge", "--calibration", "--seeds", "--pictures")  # of no other kind of measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of judging pictures."""
    group = parser.add_argument_group("fidelity on prompts of your own, with any base and judge")
    group.add_argument(
        "--prompts", type=Path, metavar="FILE", help="text, JSON lines or a folder (default: the world's)"
    )
    group.add_argument(
        "--judge", action="append", metavar="SPEC", help="clip:FOLDER_OR_ID, vqa:FOLDER_OR_ID or checker; repeatable"
    )
    group.add_argument(
        "--calibration", action="append", default=[], metavar="REPORT", help="of `debias-sd calibrate`; repeatable"
    )
    group.add_argument("--seeds", type=int, nargs="+", metavar="N", help="pictures of each prompt (default: --seed)")
    group.add_argument(
        "--pictures", type=Path, metavar="DIR", help="keep the pictures; a run goes on with what is there"
    )
    group.add_argument("--batch", type=int, metavar="N", help="pictures at a time (default 1; embedded base 25)")
    group.add_argument("--dtype", choices=DTYPES, help="default: float16 on cuda (judges: bfloat16), else float32")
    group.add_argument("--no-floor", action="store_true", help="do not judge pictures against other prompts too")


def is_asked_for(arguments: argparse.Namespace) -> bool:
    """Whether fidelity is to be measured on prompts or by judges of the user's choice; ValueError for half of it."""
    asked = arguments.prompts is not None or bool(arguments.judge)
    if asked and arguments.calibration and set(arguments.judge or [CHECKER]) == {CHECKER}:
        raise ValueError(
            "--calibration is for judges that are models, the checker is exact and has no thresholds to choose; leave "
            "it out, or give --judge clip:FOLDER_OR_ID or vqa:FOLDER_OR_ID."
        )
    for option in OPTIONS:
        if not asked and getattr(arguments, option[2:]):
            raise ValueError(f"{option} goes with --prompts or --judge; give one of them, or leave it out.")
    return asked


def measure(encoders: dict[str, str], arguments: argparse.Namespace) -> tuple[dict, dict, dict]:
    """Results, settings and the rest of the report. Judges and encoders are loaded once first, for their faults."""
    from debias_sd.generation.drawing import Sampling, ways_for
    from debias_sd.generation.measure import example_pictures, judge_albums
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline

    hide_loading_bars()
    quiet_loading()  # again: diffusers, loaded by now, has set its own level
    seeds, batch = _seeds(arguments), _batch(arguments)
    own = None if arguments.prompts is None else _own_prompts(arguments)
    device, dtype = device_and_dtype(arguments)
    judges = [_loader(spec, arguments, device) for spec in dict.fromkeys(arguments.judge or [])]
    for load in judges:
        _warn_of_marks(load())
    base = load_debias_pipeline(arguments.base, "base", torch_dtype=dtype).to(device)
    _check_judges(arguments, base)
    settle_guidance(arguments, base)
    sampling = Sampling(arguments.steps, arguments.guidance_scale, batch)
    for name, source in encoders.items():  # faults of one are told before the others are drawn
        ways_for(base, name, load_named(source, base=arguments.base, flag="--encoder"))
    judges = judges or [_loader(CHECKER, arguments, device)]
    texts, prompts = own or _worlds_prompts(arguments)
    with tempfile.TemporaryDirectory(prefix="debias-sd-") as scratch:
        load = functools.partial(load_named, base=arguments.base, flag="--encoder")
        drawn = _draw(base, encoders, load, texts, seeds, sampling, folder=arguments.pictures or Path(scratch))
        about = {"scheduler": type(base.scheduler).__name__, "pipeline": type(base).__name__}
        examples = example_pictures(drawn.albums)
        del base  # the judges take its place in memory
        _free(device)
        judged = judge_albums(
            drawn.albums, drawn.sentences, judges, samples=arguments.samples, floor=not arguments.no_floor,
            start_bar=_bars(),
        )  # fmt: skip
    results = {way: drawn.about[way] | {"judges": scores} for way, scores in judged.encoders.items()}
    _say_scores(judged, drawn.sentences)
    settings = {
        **about, **prompts, "seeds": seeds, "steps": arguments.steps, "guidance": arguments.guidance_scale,
        "batch": batch, "device": device.type, "dtype": str(dtype).removeprefix("torch."),
        "samples": arguments.samples,
    }  # fmt: skip
    extra = {"judges": judged.judges, "differences_of_pictures": judged.differences, "agreement": judged.agreement}
    return results, settings, extra | {"examples": examples}


def _free(device: torch.device) -> None:
    import torch

    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _loader(spec: str, arguments: argparse.Namespace, device: torch.device) -> Callable[[], Judge]:
    def load() -> Judge:
        from debias_sd.judges import load_judge

        dtype = judge_dtype(arguments.dtype, device)
        return load_judge(spec, device=str(device), dtype=dtype, calibration=arguments.calibration)

    return load


def _warn_of_marks(judge: Judge) -> None:
    from debias_sd.reporting.judged import MEAN_ALONE

    if judge.thresholds.source == type(judge.thresholds)().source:
        warn(f"judge {judge.name} is not calibrated, its marks are a guess: debias-sd calibrate --judge {judge.name}")
    if judge.thresholds.drawn is None:
        warn(f"judge {judge.name} was never sure enough to say drawn in its calibration: {MEAN_ALONE}.")


def _own_prompts(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The prompts of a file, and what the report says of them."""
    from debias_sd.prompts.files import read_prompt_file
    from debias_sd.report import hash_texts

    found = read_prompt_file(arguments.prompts).first(arguments.count)
    for count, what in ((found.empty, "without text left out"), (found.repeated, "repeated, and kept")):
        if count:
            warn(f"{arguments.prompts}: {count_of(count, 'prompt')} {what}.")
    about = {"prompts": arguments.prompts.name, "empty": found.empty, "repeated": found.repeated}
    return found.texts, about | {"count": len(found.texts), "texts_sha256": hash_texts(found.texts)}


def _worlds_prompts(arguments: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """The held-out prompts of the embedded world, and what the report says of them."""
    from debias_sd.report import hash_texts
    from debias_sd.shapes.heldout import prompt_set

    texts = [caption.text for caption in prompt_set(arguments.seed, count=arguments.count or 200).captions]
    about = {"prompts": "world", "empty": 0, "repeated": 0}
    return texts, about | {"count": len(texts), "texts_sha256": hash_texts(texts)}


def _check_judges(arguments: argparse.Namespace, base: DiffusionPipeline) -> None:
    """ValueError where the embedded world's prompts or checker are asked for with another base."""
    from debias_sd.comparison import is_checked

    if not is_checked(base) and arguments.prompts is None:
        raise ValueError("--prompts is not set, only the embedded world has prompts of its own; give a file.")
    if not is_checked(base) and (not arguments.judge or CHECKER in arguments.judge):
        raise ValueError(
            "the checker reads pictures of the embedded world alone, this base draws others; give --judge "
            "clip:FOLDER_OR_ID or vqa:FOLDER_OR_ID."
        )


def _seeds(arguments: argparse.Namespace) -> list[int]:
    from debias_sd.generation.drawing import LARGEST_SEED

    seeds = arguments.seeds or [arguments.seed]
    wrong = [seed for seed in seeds if not 0 <= seed <= LARGEST_SEED]
    if wrong or len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds are {seeds}, allowed are different ones of 0 to {LARGEST_SEED}; correct them.")
    return seeds


def _batch(arguments: argparse.Namespace) -> int:
    batch = arguments.batch if arguments.batch is not None else (25 if arguments.base is None else 1)
    if batch < 1:
        raise ValueError(f"--batch is {batch}, it must be 1 or more; leave it out for one at a time.")
    return batch


class _Drawn:
    """All pictures of a run, and what the report says of each encoder."""

    def __init__(self, sentences: Sentences) -> None:
        self.sentences = sentences
        self.albums: dict[str, Album] = {}
        self.about: dict[str, dict[str, Any]] = {}

    def add(self, way: Way, album: Album, hashes: dict[str, str]) -> None:
        """Take in the pictures of one way."""
        window = way.pipe.tokenizer.model_max_length
        self.albums[way.name] = album
        self.about[way.name] = hashes | {
            "window": window,
            "in_windows": way.chunk is not None,
            "prompts_past_window": int((self.sentences.tokens > window).sum()),
            "pictures": {"drawn": album.drawn, "found": album.found, "black": album.black},
        }
        if album.black:
            warn(
                f"{way.name}: {count_of(album.black, 'picture')} all black; a safety checker hides what it objects to."
            )


def _draw(
    base: DiffusionPipeline,
    encoders: dict[str, str],
    load: Callable[[str], TextEncoder | str | None],
    texts: list[str],
    seeds: list[int],
    sampling: Sampling,
    *,
    folder: Path,
) -> _Drawn:
    from debias_sd.generation.drawing import draw_album, ways_for
    from debias_sd.generation.sentences import sentences_in
    from debias_sd.generation.store import PictureStore, common_settings, hash_pipeline

    settings = common_settings(steps=sampling.steps, guidance=sampling.guidance, batch=sampling.batch)
    store, start_bar = PictureStore(folder, settings), _bars()
    drawn, known = _Drawn(sentences_in(texts, base.tokenizer)), WeakKeyDictionary()
    for name, source in encoders.items():
        encoder = load(source)
        weights = hash_named(source, encoder)
        for way in ways_for(base, name, encoder):
            digest = hash_pipeline(way.pipe, known)
            step = start_bar(f"pictures of {way.name}", len(seeds) * len(texts))
            album = draw_album(way, texts, seeds, store=store, pipeline_sha256=digest, sampling=sampling, progress=step)
            drawn.add(way, album, {"sha256": weights or digest, "pipeline_sha256": digest})
    return drawn


def _bars() -> Callable[[str, int], Callable[[int], object]]:
    """One bar a task; the next task takes its place."""
    from debias_sd.commands.evaluate_sets import bars

    return bars(shown=True)


def _say_scores(judged: Judged, sentences: Sentences) -> None:
    """One line an encoder and judge; of a judge that can never say drawn the share is no measurement."""
    from debias_sd.reporting.judged import MEAN_ALONE, says_drawn

    if not sentences.is_late.any():
        warn("every prompt is one sentence, so there are no late details; the reports hold the share of all sentences.")
    for way, by_judge in judged.encoders.items():
        for judge, scores in by_judge.items():
            share = _share(scores) if says_drawn(judged.judges[judge]) else f"late details never drawn, {MEAN_ALONE}"
            say(f"{way}: {share}, mean score {_number(scores['late_score'])}, by {judge}")
            missed = sum(scores["not_judged"].values())
            if missed:
                warn(
                    f"{judge} could not judge {missed:,} of {count_of(missed + scores['judged'], 'sentence')} of {way}."
                )


def _share(scores: dict[str, Any]) -> str:
    interval, floor = scores["late_detail_interval"], scores.get("floor")
    cells = [f"late details drawn {_number(scores['late_detail'])} %"]
    cells += [f" (95 %: {interval[0]:.1f} to {interval[1]:.1f})"] if interval else []
    return "".join([*cells, f", floor {_number(floor['late_detail'])}" if floor else ""])


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
