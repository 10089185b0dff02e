"""`debias-sd convert`: someone else's CLIP checkpoint as an encoder folder, compared with its source."""

import argparse
from typing import TYPE_CHECKING

from debias_sd.commands.terminal import quiet_loading, say, warn

if TYPE_CHECKING:
    from debias_sd.checkpoints.writing import Conversion

HELP = "make an encoder folder of a CLIP checkpoint"
TARGETS = ("sd1", "sd2", "sdxl", "sdxl-2", "sd3", "flux", "retrieval")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd convert`."""
    parser.add_argument("source", metavar="SRC", help="a checkpoint file, a folder or a hub id")
    parser.add_argument("out", metavar="DST", help="the encoder folder to write")
    parser.add_argument("--part", type=int, metavar="N", help="which encoder of a file that holds several, from 1")
    parser.add_argument("--target", choices=TARGETS, help="what it is for: decides the pad token (default: by width)")
    parser.add_argument(
        "--positions",
        choices=("trained", "published"),
        default="trained",
        help="of two position tables: both merged (default), or the first alone as DeBias-CLIP was published",
    )
    parser.add_argument("--positions-needed", type=int, metavar="N", help="refuse a checkpoint with fewer positions")
    parser.add_argument("--stretch", action="store_true", help="make 77 positions 248, without training")
    parser.add_argument("--activation", choices=("quick_gelu", "gelu"), help="where the file does not say it")
    parser.add_argument("--heads", type=int, metavar="N", help="attention heads (default: width / 64)")
    parser.add_argument("--architecture", metavar="NAME", help="open_clip's name of the model, EVA02-L-14 for instance")
    parser.add_argument("--image-tower", action="store_true", help="write a whole CLIPModel")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="default: the checkpoint's own")
    parser.add_argument("--tokenizer", metavar="FOLDER", help="tokenizer files (default: the source's, or CLIP's own)")


def run(arguments: argparse.Namespace) -> int:
    """Convert, then say what was found, left out and compared."""
    from debias_sd.checkpoints.convert import convert_checkpoint

    quiet_loading()
    options = {name: value for name, value in vars(arguments).items() if name not in ("run", "flags", "source", "out")}
    result = convert_checkpoint(arguments.source, arguments.out, **options)
    for line in lines_of(result):
        say(line)
    for note in result.notes:
        warn(note)
    return 0


def lines_of(result: "Conversion") -> list[str]:
    """Return what the command reports about a conversion."""
    tables = "" if result.tables == "one" else f" (two tables, {result.tables})"
    left_out = ", ".join(f"{name} ({count})" for name, count in sorted(result.left_out.items()))
    worst = max(result.differences, key=result.differences.__getitem__)
    return [
        f"{result.folder}: {result.model_class} from {result.layout}",
        f"  width {result.width}, layers {result.layers}, heads {result.heads}, {result.activation}, {result.dtype}",
        f"  {result.positions} positions{tables}, pad id {result.pad_id}"
        + ("" if result.target is None else f" as for {result.target}")
        + f", {result.tokenizer}",
        f"  left out: {left_out or 'nothing'}",
        f"  largest difference from the source: {result.differences[worst]:.2g} ({worst})",
    ]
