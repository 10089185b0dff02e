"""`debias-sd generate`: one picture from one prompt of any length, its settings kept inside the PNG."""

import argparse
import inspect
import io
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from debias_sd.commands.arguments import (
    MEANING,
    OWN,
    SOURCE,
    add_negative_arguments,
    add_prompt_arguments,
    add_sampling_arguments,
    load_named,
    read_prompt,
    resolve_guidance,
    resolve_sampling,
    warn_unknown_words,
)
from debias_sd.commands.terminal import quiet_loading, say
from debias_sd.drawing import FEEDS, OWN_READINGS, Variant, draw
from debias_sd.prompts.cuts import BY_SENTENCE
from debias_sd.text import count_of

if TYPE_CHECKING:
    import torch
    from PIL import Image

    from debias_sd.pipelines.load import DiffusionPipeline

HELP = "make a picture from a prompt of any length"
EMBEDDED_SCALE = 8
LARGEST_SCALE = 32  # 512 pixels become 16,384: 0.8 GB
DTYPES = ("float32", "float16", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd generate`."""
    add_prompt_arguments(parser)
    add_negative_arguments(parser)
    parser.add_argument(
        "--base",
        metavar="FOLDER|ID|FILE",
        help="pipeline of Stable Diffusion 1.x, 2.x, XL, 3 or FLUX (default: the embedded one)",
    )
    parser.add_argument(
        "--encoder",
        metavar=SOURCE,
        help=f"text encoder: {MEANING} (default: debias; --base needs one)",
    )
    parser.add_argument(
        "--encoder-2",
        metavar="FOLDER|ID",
        help="second CLIP text encoder of SDXL and Stable Diffusion 3 (default: the pipeline's own, stretched)",
    )
    parser.add_argument("--show-encoders", action="store_true", help="say what is in each text encoder's slot")
    parser.add_argument(
        "--window",
        type=_tokens,
        metavar="TOKENS|auto|sentence",
        help="tokens read at a time (default: all it can; auto: 77 where everything fits in it), or by sentences",
    )
    parser.add_argument("--weighting", choices=("a1111",), help="read (word:1.3) and BREAK as markup")
    parser.add_argument("--seed", type=int, default=0, help="same seed, same picture (default: 0)")
    add_sampling_arguments(parser)
    parser.add_argument("--device", help="default: cuda where there is one, else cpu")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float16 on cuda, else float32")
    parser.add_argument("--scale", type=int, metavar="N", help="enlarge N times by repeating pixels (default: 1; the "
                        f"embedded model's tiny pictures {EMBEDDED_SCALE})")  # fmt: skip
    parser.add_argument("--out", default="picture.png", metavar="FILE.png", help="default: picture.png")


def _tokens(text: str) -> int | str:
    try:
        return text if text in ("auto", *BY_SENTENCE) else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a number of tokens; give one, as 77, auto or sentence."
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """Make the picture; ValueError for every fault of the user's, before anything is written."""
    prompt = read_prompt(arguments)
    resolve_sampling(arguments)
    out = _checked_output(arguments)
    from debias_sd.encoder import TextEncoder
    from debias_sd.pipelines.load import hide_loading_bars, load_debias_pipeline
    from debias_sd.prompts.token_report import count_tokens

    quiet_loading()
    hide_loading_bars()
    device, dtype = device_and_dtype(arguments)
    name = arguments.encoder or ("debias" if arguments.base is None else None)
    if name in OWN_READINGS:
        arguments.window = arguments.window or FEEDS[OWN_READINGS[name]].reading.get("window")
        name = OWN
    encoder = None if name is None else load_named(name, base=arguments.base, flag="--encoder")
    started = time.perf_counter()
    pipe = load_debias_pipeline(
        arguments.base, name if name == OWN else encoder, encoder_2=arguments.encoder_2, torch_dtype=dtype
    ).to(device)
    _check_draws_from_text(pipe)
    resolve_guidance(arguments, pipe)
    reading = {"window": arguments.window, "weighting": arguments.weighting}
    window = _window_of(pipe, [prompt, arguments.negative_prompt], **reading)
    image = _draw(Variant(name or OWN, pipe, reading), prompt, arguments)
    told = arguments.window if arguments.window in BY_SENTENCE else window
    settings = _settings(arguments, pipe, prompt=prompt, encoder=name, window=told, dtype=dtype)
    write_png(image, out, settings=settings)
    counted = count_tokens(pipe, prompt, lengths=(window,), weighting=arguments.weighting)["text_encoder"]
    windows = max(1, len(counted.readings[window].windows))
    read = f"in {count_of(windows, 'window')} of {window}"
    if arguments.window in BY_SENTENCE and windows > 1:
        read = "read by sentences"
    say(
        f"{out}: {image.width}x{image.height}, {count_of(counted.tokens, 'token')} {read}, encoder {name}, "
        f"seed {arguments.seed}, {time.perf_counter() - started:.1f} s"
    )
    if arguments.show_encoders:
        _say_encoders(pipe)
    if isinstance(encoder, TextEncoder):
        words = count_tokens(encoder, f"{prompt} {arguments.negative_prompt}", weighting=arguments.weighting)
        warn_unknown_words(str(name), words.unknown_words)
    return 0


def _window_of(pipe: "DiffusionPipeline", texts: list[str], *, window: int | str | None, weighting: str | None) -> int:
    """Return the tokens that `encode_prompt` read at a time."""
    from debias_sd.prompts.batch import SHORT
    from debias_sd.prompts.token_report import count_tokens

    longest = pipe.tokenizer.model_max_length
    if window != "auto":
        return longest if window in (None, *BY_SENTENCE) else window
    counts = [count_tokens(pipe, text, lengths=(SHORT,), weighting=weighting)["text_encoder"] for text in texts]
    return SHORT if all(len(count.readings[SHORT].windows) <= 1 for count in counts) else longest


def _check_draws_from_text(pipe: "DiffusionPipeline") -> None:
    """Raise ValueError for a pipeline that starts from a picture or makes a film."""
    takes = inspect.signature(pipe.__call__).parameters
    for name, does in (("image", "starts from a picture"), ("num_frames", "makes films")):
        if name in takes:
            raise ValueError(
                f"base is a {type(pipe).__name__}, which {does}, and generate draws pictures from text alone; give a "
                "text-to-image pipeline, or use load_debias_pipeline() in Python."
            )


def _say_encoders(pipe: "DiffusionPipeline") -> None:
    from debias_sd.pipelines.slots import describe_encoders

    for row in describe_encoders(pipe):
        reads = f"{row.positions} tokens, {row.width} wide, padded with id {row.pad_id}"
        say(f"{row.slot}: {row.origin}, {row.kind}, {reads}")


def _draw(variant: Variant, prompt: str, arguments: argparse.Namespace) -> "Image.Image":
    from PIL import Image

    variant.pipe.set_progress_bar_config(delay=3, leave=False)
    options = {} if arguments.true_cfg_scale is None else {"true_cfg_scale": arguments.true_cfg_scale}
    sampling = {"steps": arguments.steps, "guidance": arguments.guidance_scale, "negative": arguments.negative_prompt}
    image = Image.fromarray(draw(variant, [prompt], [arguments.seed], **sampling, **options)[0])
    scale = arguments.scale or (EMBEDDED_SCALE if arguments.base is None else 1)
    return image.resize((image.width * scale, image.height * scale), resample=0)  # 0: nearest neighbour


def _checked_output(arguments: argparse.Namespace) -> Path:
    """Return the output path; ValueError for settings that would fail only after the long work."""
    out = Path(arguments.out).expanduser()
    if out.suffix.lower() != ".png":
        raise ValueError(f"output {out} does not end in .png; the settings are kept inside a PNG.")
    try:
        if out.is_dir() or not out.parent.is_dir():
            raise ValueError(
                f"output {out} cannot be written because its folder does not exist; make it or give another --out."
            )
        tempfile.TemporaryFile(dir=out.parent).close()  # permission bits say nothing to root or of a read-only disk
    except OSError as error:
        raise ValueError(f"output folder {out.parent} cannot be written ({error.strerror}); give another.") from error
    if arguments.scale is not None and not 1 <= arguments.scale <= LARGEST_SCALE:
        raise ValueError(f"--scale is {arguments.scale} but must be from 1 to {LARGEST_SCALE}.")
    return out


def device_and_dtype(arguments: argparse.Namespace) -> tuple["torch.device", "torch.dtype"]:
    """Return device and dtype; ValueError for a device that torch does not know or have."""
    import torch

    name = arguments.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"device {name} is not available here; give cpu, or cuda where there is a GPU.") from None
    if device.type == "meta":
        raise ValueError("device meta computes nothing; give cpu or cuda.")
    return device, getattr(torch, arguments.dtype or ("float16" if device.type == "cuda" else "float32"))


def _settings(
    arguments: argparse.Namespace,
    pipe: "DiffusionPipeline",
    *,
    prompt: str,
    encoder: str | None,
    window: int | str,
    dtype: "torch.dtype",
) -> dict[str, str]:
    """Return what the picture was drawn with, and nothing that the pipeline did not use."""
    from debias_sd import __version__
    from debias_sd.pipelines.options import reads_guidance

    settings = {
        "prompt": prompt,
        "negative_prompt": arguments.negative_prompt,
        "base": arguments.base or "embedded",
        "encoder": encoder,
        "window": window,
        "seed": arguments.seed,
        "steps": arguments.steps,
        "guidance_scale": arguments.guidance_scale,
        "dtype": str(dtype).removeprefix("torch."),
        "software": f"debias_sd {__version__}",
    }
    if not reads_guidance(pipe):
        del settings["guidance_scale"]
    for option in ("weighting", "encoder_2", "true_cfg_scale"):
        if getattr(arguments, option) is not None:
            settings[option] = getattr(arguments, option)
    return {name: str(value) for name, value in settings.items()}


def write_png(image: "Image.Image", out: Path, *, settings: dict[str, str]) -> None:
    """Write a PNG with `settings` as text chunks, whole or not at all."""
    from PIL.PngImagePlugin import PngInfo

    from debias_sd.report import write_atomically

    chunks = PngInfo()
    for name, value in settings.items():
        chunks.add_itxt(name, value.replace("\0", ""))  # iTXt is UTF-8; a zero byte would end the text
    content = io.BytesIO()
    image.save(content, format="PNG", pnginfo=chunks)
    write_atomically(out, content.getvalue())
