"""What the arguments mean that commands and the app share: prompt, denoising steps and guidance, names of encoders.

| name | with a base | without |
|---|---|---|
| base | the base pipeline's own encoder | the embedded one of that name |
| stretched | the base's own, lengthened without training | the same of the embedded pipeline |
| chunked | the base's own, which reads a prompt in windows of its length | the same of the embedded pipeline |
| sentences | the base's own, which reads a prompt by sentences | the same of the embedded pipeline |
| long-clip, debias | the embedded ones | |
| a folder, a hub id | that encoder | |

NAME=SOURCE gives one of these another name in what a command says and writes.
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from debias_sd.commands.terminal import warn
from debias_sd.drawing import OWN_READINGS
from debias_sd.text import decode_text, read_text

if TYPE_CHECKING:
    from debias_sd.encoder import TextEncoder


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PROMPT and --prompt-file."""
    parser.add_argument("prompt", nargs="?", help="the prompt, of any length; - reads standard input")
    parser.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a text file (UTF-8)")


def read_prompt(arguments: argparse.Namespace) -> str:
    """Return the prompt; ValueError when there is none or two, when it is empty, or when the file is not text."""
    if (arguments.prompt is None) == (arguments.prompt_file is None):
        raise ValueError("give one prompt, either as the argument or with --prompt-file.")
    given = arguments.prompt_file
    if "-" in (arguments.prompt, given):
        prompt = _read_input()
    else:
        prompt = arguments.prompt if given is None else read_text(given, what="prompt file").strip()
    if not prompt.strip():
        raise ValueError("the prompt is empty; write what the picture should show.")
    return prompt


def _read_input() -> str:
    if sys.stdin is None:
        raise ValueError("standard input is closed, so - has no prompt; give the prompt itself.")
    return decode_text(sys.stdin.buffer.read(), "standard input").strip()


def warn_unknown_words(encoder: str, words: Iterable[str]) -> None:
    """Name the words that the encoder was never trained on, if there are any."""
    words = list(words)
    if words:
        shown = [word if len(word) <= 40 else f"{word[:39]}…" for word in words[:10]]
        named = ", ".join(shown) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
        warn(f"encoder {encoder} was never trained on: {named}")


EMBEDDED = {"steps": 25, "guidance_scale": 2.0}  # its results are measured with these
REAL = {"steps": 30, "guidance_scale": 7.5}  # what Stable Diffusion 1.x is used with


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --steps and --guidance-scale."""
    steps, scale = EMBEDDED["steps"], EMBEDDED["guidance_scale"]
    other = f"(default: {steps} with the embedded base, {REAL['steps']} with another)"
    parser.add_argument("--steps", type=int, metavar="N", help=f"denoising steps {other}")
    parser.add_argument(
        "--guidance-scale",
        type=float,
        metavar="SCALE",
        help=f"guidance (default: {scale} with the embedded base; with another that of its pipeline in diffusers, 7.5 "
        "for Stable Diffusion 1.x, 3.5 for FLUX)",
    )


def add_negative_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --negative-prompt and --true-cfg-scale."""
    parser.add_argument("--negative-prompt", default="", metavar="TEXT", help="what the picture should not show")
    parser.add_argument(
        "--true-cfg-scale",
        type=float,
        metavar="SCALE",
        help="guidance of FLUX by a negative prompt, above 1; takes twice the time",
    )


def resolve_sampling(arguments: argparse.Namespace) -> None:
    """Fill in the steps that were not given, and check them, the guidance and the seed before anything is loaded."""
    defaults = EMBEDDED if arguments.base is None else REAL
    arguments.steps = defaults["steps"] if arguments.steps is None else arguments.steps
    if not 1 <= arguments.steps <= 1000:
        raise ValueError(f"--steps is {arguments.steps} but must be from 1 to 1000.")
    for option in ("guidance_scale", "true_cfg_scale"):
        scale = getattr(arguments, option, None)
        if scale is not None and not math.isfinite(scale):
            raise ValueError(f"--{option.replace('_', '-')} is {scale} but must be a finite number.")
    if not 0 <= arguments.seed < 2**63:
        raise ValueError(f"--seed is {arguments.seed} but must be from 0 to 2**63 - 1.")


def check_least(flag: str, number: int | None, usual: str, *, least: int = 1) -> None:
    """Raise ValueError for a number below `least`; None was left out, which gives `usual`."""
    if number is not None and number < least:
        raise ValueError(f"{flag} is {number} but must be {least} or more; leave it out for {usual}.")


def check_seeds(seeds: Sequence[int], largest: str = "2**63 - 1", *, below: int = 2**63) -> None:
    """Raise ValueError for a seed that is given twice or out of range."""
    if min(seeds) < 0 or max(seeds) >= below or len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds are {list(seeds)} but must be different numbers from 0 to {largest}.")


def resolve_guidance(arguments: argparse.Namespace, pipe: object) -> None:
    """Fill in the guidance that was not given, by the pipeline; ValueError for one that the pipeline does not use."""
    from debias_sd.pipelines.options import check_guidance, default_guidance, reads_guidance

    given = arguments.guidance_scale
    if given is not None and not reads_guidance(pipe):
        raise ValueError(
            f"--guidance-scale is {given:g} but this {type(pipe).__name__} was distilled without guidance and does not "
            "use it; leave it out."
        )
    if given is None:
        arguments.guidance_scale = EMBEDDED["guidance_scale"] if arguments.base is None else default_guidance(pipe)
    true_scale, negative = getattr(arguments, "true_cfg_scale", None), getattr(arguments, "negative_prompt", "")
    check_guidance(pipe, scale=arguments.guidance_scale, true_scale=true_scale, negative=negative)


MODEL_JUDGES = "clip:FOLDER_OR_ID or vqa:FOLDER_OR_ID"  # what --judge takes beside the world's checker
OWN, STRETCHED = "base", "stretched"
SOURCE = "NAME|FOLDER|ID"
MEANING = (
    "base (the pipeline's own), stretched (its own, lengthened without training), chunked or sentences (its own, to "
    "the end of any prompt), long-clip, debias, a folder or a hub id"
)


def default_names(base: str | None) -> tuple[str, ...]:
    """Return the encoders that fit a base by default: those of the embedded pipeline, or what any other one has."""
    from debias_sd.encoder_folder import EMBEDDED

    return EMBEDDED if base is None else (OWN, STRETCHED)


def read_name(word: str, *, flag: str) -> tuple[str | None, str]:
    """Return the name, None without one, and the source of `NAME=SOURCE` or `SOURCE`; ValueError for half of it."""
    before, separator, source = word.partition("=")
    name: str | None = before
    if not separator or Path(word).is_dir():
        name, source = None, word
    if name == "" or not source:
        raise ValueError(f"{flag} is {word!r}, expected NAME=SOURCE or SOURCE; write e.g. mine=runs/debias.")
    return name, source


def read_names(words: Sequence[str], *, flag: str) -> dict[str, str]:
    """Return sources by name; one without a name has that of the last part of its folder or id.

    Raises ValueError for a name that is given twice.

    >>> read_names(["debias", "Mine=runs/s0/debias", "org/long-clip-sd/"], flag="--encoders")
    {'debias': 'debias', 'Mine': 'runs/s0/debias', 'long-clip-sd': 'org/long-clip-sd/'}
    """
    encoders: dict[str, str] = {}
    for word in words:
        name, source = read_name(word, flag=flag)
        name = Path(source).name or source if name is None else name
        if name in encoders:
            raise ValueError(f"{flag} has the name {name!r} twice; give one of them another, as NAME=SOURCE.")
        encoders[name] = source
    return encoders


def load_named(source: str, *, base: str | None, flag: str) -> TextEncoder | str | None:
    """Return the encoder that `source` means with `base`: None is the base as it is; other names of its own stay names.

    Raises ValueError, with the nearest name for one that is misspelt, when it is nowhere or cannot be read.
    """
    from debias_sd.encoder import TextEncoder

    if source in (STRETCHED, *OWN_READINGS):
        return source
    if source == OWN and base is not None:
        return None
    check_spelling(source, flag=flag)
    return TextEncoder.load(source)


def hash_named(source: str, encoder: TextEncoder | str | None) -> str | None:
    """Return the hash of the weights that `source` names; None where they are the base pipeline's own."""
    from debias_sd.encoder import TextEncoder
    from debias_sd.encoder_folder import find_encoder_folder
    from debias_sd.report import hash_file

    own = not isinstance(encoder, TextEncoder)
    return None if own else hash_file(find_encoder_folder(source) / "model.safetensors")


def check_spelling(source: str, *, flag: str) -> None:
    """Raise ValueError with the nearest name for what is neither a name, nor there, nor the shape of a hub id."""
    from debias_sd.encoder_folder import EMBEDDED

    known = (*EMBEDDED, STRETCHED, *OWN_READINGS)
    if source in known or "/" in source or Path(source).expanduser().exists():
        return
    near = difflib.get_close_matches(source.lower(), known, n=1)
    if near:
        raise ValueError(f"{flag} is {source!r}, which is not a folder or a known name; did you mean {near[0]}?")
