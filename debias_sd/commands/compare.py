"""`debias-sd compare`: one prompt, one seed, several text encoders; a table in the terminal and a picture."""

import argparse
import io
from pathlib import Path

from debias_sd.commands.arguments import (
    MEANING,
    SOURCE,
    add_negative_arguments,
    add_prompt_arguments,
    add_sampling_arguments,
    default_names,
    load_named,
    read_names,
    read_prompt,
    resolve_guidance,
    resolve_sampling,
    warn_unknown_words,
)
from debias_sd.commands.generate import DTYPES, device_and_dtype
from debias_sd.commands.terminal import quiet_loading, say, say_json

HELP = "draw one prompt with several encoders and mark what each one drew"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd compare`."""
    add_prompt_arguments(parser)
    parser.add_argument(
        "--encoders",
        nargs="+",
        metavar=f"[NAME=]{SOURCE}",
        help=f"{MEANING} (default: base, long-clip, debias; with --base: base, stretched)",
    )
    parser.add_argument("--base", metavar="FOLDER|ID|FILE", help="pipeline (default: the embedded one)")
    add_negative_arguments(parser)
    parser.add_argument("--seed", type=int, default=0, help="same seed, same pictures (default: 0)")
    add_sampling_arguments(parser)
    parser.add_argument("--size", type=int, metavar="PIXELS", help="height and width (default: the pipeline's own)")
    parser.add_argument("--device", default="cpu", help="default: cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="default: float32")
    parser.add_argument(
        "--out", type=Path, default=Path("compare.png"), metavar="FILE.png", help="default: compare.png"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")


def run(arguments: argparse.Namespace) -> int:
    """Draw, print the table, write the picture; ValueError for every fault of the user's."""
    prompt = read_prompt(arguments)
    out = _checked_output(arguments)
    from tqdm import tqdm

    from debias_sd.comparison import compare_encoders, table_of
    from debias_sd.encoder import TextEncoder
    from debias_sd.panels import draw_panels
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline
    from debias_sd.report import write_atomically

    quiet_loading()
    hide_loading_bars()
    device, dtype = device_and_dtype(arguments)
    names = read_names(arguments.encoders or default_names(arguments.base), flag="--encoders")
    encoders = {name: load_named(source, base=arguments.base, flag="--encoders") for name, source in names.items()}
    base = load_debias_pipeline(arguments.base, "base", torch_dtype=dtype).to(device)
    resolve_guidance(arguments, base)
    with tqdm(total=len(encoders) + 1, desc="pictures", delay=3, leave=False) as bar:

        def drawing(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        comparison = compare_encoders(
            prompt,
            encoders,
            base=base,
            seed=arguments.seed,
            steps=arguments.steps,
            guidance=arguments.guidance_scale,
            true_cfg=arguments.true_cfg_scale,
            negative=arguments.negative_prompt,
            side=arguments.size,
            progress=drawing,
        )
    content = io.BytesIO()
    draw_panels(comparison).save(content, format="PNG")
    write_atomically(out, content.getvalue())
    if arguments.json:
        say_json(comparison.as_json())
    else:
        say(f"{table_of(comparison)}\n{out}: the pictures side by side")
    for name, encoder in encoders.items():
        if isinstance(encoder, TextEncoder):
            warn_unknown_words(name, encoder.unknown_words(prompt))
    return 0


def _checked_output(arguments: argparse.Namespace) -> Path:
    """Return the output path; ValueError for settings that would fail only after the long work."""
    from debias_sd.report import check_writable

    out = Path(arguments.out).expanduser()
    if out.suffix.lower() != ".png":
        raise ValueError(f"output {out} does not end in .png; the comparison is one PNG picture.")
    resolve_sampling(arguments)
    if arguments.size is not None and (arguments.base is None or arguments.size < 8 or arguments.size % 8):
        raise ValueError(
            f"--size is {arguments.size} but must be a multiple of 8, with a --base: the embedded one draws 48 x 48."
        )
    check_writable(out)
    return out
