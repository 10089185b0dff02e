"""`debias-sd draw-set`: pictures for DPG-Bench, GenEval or T2I-CompBench, laid out as their own judges read them."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debias_sd.commands.arguments import (
    MEANING,
    OWN,
    SOURCE,
    add_sampling_arguments,
    check_least,
    check_seeds,
    load_named,
    resolve_guidance,
    resolve_sampling,
)
from debias_sd.commands.generate import DTYPES, device_and_dtype
from debias_sd.commands.terminal import quiet_loading, say, warn
from debias_sd.drawing import FEEDS
from debias_sd.text import count_of

if TYPE_CHECKING:
    import numpy as np
    import torch

    from debias_sd.benchmark_sets import BenchmarkSet
    from debias_sd.drawing import Variant

HELP = "draw the prompts of DPG-Bench, GenEval or T2I-CompBench in the layout of their judges"
ENCODER = "debias"
LAYOUTS = ("dpg", "geneval", "t2i-compbench")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd draw-set`."""
    parser.add_argument("--layout", choices=LAYOUTS, required=True, help="whose folders and names")
    parser.add_argument(
        "--prompts", type=Path, required=True, metavar="FILE", help="text, JSON lines or a folder of text files"
    )
    parser.add_argument("--base", metavar="FOLDER|ID|FILE", help="pipeline (default: the embedded one)")
    parser.add_argument(
        "--encoder", metavar=SOURCE, help=f"text encoder: {MEANING} (default: debias; of another base its own)"
    )
    parser.add_argument(
        "--past-77",
        choices=tuple(FEEDS),
        default="windows",
        help="what an encoder of 77 tokens does with longer prompts (default: windows)",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="of every prompt (default: 0, 1, ...: 4, 4, 10)"
    )
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)  # what resolve_sampling checks
    parser.add_argument("--count", type=int, help="the first so many prompts")
    add_sampling_arguments(parser)
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="pictures of a prompt at a time (default 1)")
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float16 on cuda, else float32")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the set's folder; a run goes on in it")


def run(arguments: argparse.Namespace) -> int:
    """Draw what is not there yet; ValueError for every fault of the user's, before anything is drawn."""
    from debias_sd.benchmark_sets import LAYOUTS, BenchmarkSet, file_name_of
    from debias_sd.prompts.files import read_prompt_file
    from debias_sd.report import check_writable

    resolve_sampling(arguments)
    layout = LAYOUTS[arguments.layout]
    check_least("--count", arguments.count, "all prompts")
    seeds = _seeds(arguments, layout.seeds)
    found = read_prompt_file(arguments.prompts)
    planned = layout.plan(found.first(arguments.count).prompts, len(seeds))
    if found.empty:
        warn(f"{arguments.prompts}: {count_of(found.empty, 'prompt')} without text left out.")
    renamed = sum(file_name_of(one.prompt.text) != one.prompt.text for one in planned)
    if arguments.layout == "t2i-compbench" and renamed:
        warn(f"{count_of(renamed, 'prompt')} with what no file name can hold (/ _ .png): the judges read spaces there.")
    check_writable(arguments.out / "manifest.json")
    quiet_loading()
    started = time.perf_counter()
    variant, settings = _load(arguments)
    made = BenchmarkSet(arguments.out, layout, planned, seeds, settings)
    made.check()
    return _draw(made, variant, arguments, started)


def _draw(made: BenchmarkSet, variant: Variant, arguments: argparse.Namespace, started: float) -> int:
    import numpy as np
    from tqdm import tqdm

    from debias_sd.drawing import draw
    from debias_sd.report import command_line

    about: dict[str, Any] = {"command": command_line()}
    past = sum(_tokens_of(variant, planned.prompt.text) > variant.window for planned in made.planned)
    about["prompts_past_window"] = past
    if past and variant.reading is None:
        warn(f"{count_of(past, 'prompt')} longer than the window of {variant.window} tokens: cut.")
    made.write_manifest(complete=False, **about)

    def pictures(prompt: str, seeds: Sequence[int]) -> np.ndarray:
        batches = [seeds[at : at + arguments.batch] for at in range(0, len(seeds), arguments.batch)]
        sampling = {"steps": arguments.steps, "guidance": arguments.guidance_scale}
        return np.concatenate([draw(variant, [prompt] * len(batch), batch, **sampling) for batch in batches])

    with tqdm(total=len(made.planned), desc=made.layout.title, unit="prompt") as bar:
        done = made.draw(pictures, progress=bar.update)
    made.write_manifest(complete=True, **about, side=done.side)
    made.tidy()
    say(
        f"{made.folder}: {count_of(len(made.planned), 'prompt')} with {count_of(len(made.seeds), 'seed')}, "
        f"{done.drawn:,} drawn and {done.found:,} there already, {time.perf_counter() - started:.0f} s"
    )
    say(f"to judge them, in {made.layout.title}'s own repository: "
        f"{made.layout.judge.format(out=made.folder, side=done.side)}")  # fmt: skip
    return 0


def _tokens_of(variant: Variant, prompt: str) -> int:
    options = {"split_special_tokens": True, "verbose": False, "truncation": False}
    return len(variant.pipe.tokenizer(prompt, **options)["input_ids"])


def _seeds(arguments: argparse.Namespace, usual: int) -> list[int]:
    seeds = arguments.seeds or list(range(usual))
    check_least("--batch", arguments.batch, "one at a time")
    check_seeds(seeds)
    return seeds


def _load(arguments: argparse.Namespace) -> tuple[Variant, dict[str, Any]]:
    """The variant, and all that decides its pixels."""
    from debias_sd.drawing import variants_of
    from debias_sd.measure.album import common_settings, hash_pipeline
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline

    hide_loading_bars()
    quiet_loading()  # again: diffusers, loaded by now, has set its own level
    device, dtype = device_and_dtype(arguments)
    name = arguments.encoder or (ENCODER if arguments.base is None else OWN)
    encoder = load_named(name, base=arguments.base, flag="--encoder")
    base = load_debias_pipeline(arguments.base, "base", torch_dtype=dtype).to(device)
    resolve_guidance(arguments, base)
    (variant,) = variants_of(base, "set", encoder, [arguments.past_77]).values()
    common = common_settings(steps=arguments.steps, guidance=arguments.guidance_scale, batch=arguments.batch)
    settings = _settings(arguments, variant, name, dtype) | common
    return variant, settings | {"pipeline_sha256": hash_pipeline(variant.pipe)}


def _settings(arguments: argparse.Namespace, variant: Variant, encoder: str, dtype: torch.dtype) -> dict[str, Any]:
    from debias_sd.report import relative

    return {
        "base": relative(arguments.base or "embedded"),
        "encoder": relative(encoder),
        "window": variant.window,
        "in_windows": variant.reading is not None,
        "scheduler": type(variant.pipe.scheduler).__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "device": variant.pipe.device.type,
    }
