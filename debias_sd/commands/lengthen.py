"""`debias-sd lengthen`: the text encoders of a pipeline get 248 positions, trained on text alone.

The training itself is train_encoder's: the same as `accelerate launch -m train_encoder --config
train_encoder/configs/lengthen.yaml`, in one process. Examples:

  debias-sd lengthen --out long                                           the embedded base, on its own captions
  debias-sd lengthen --base path/to/sdxl --texts prompts.txt --out long   both encoders of an SDXL checkpoint
"""

import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

HELP = "give a pipeline's own text encoders 248 tokens, trained on text alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd lengthen`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--base", metavar="BASE", help="pipeline: folder, hub id or single file (default: embedded)")
    parser.add_argument(
        "--texts",
        metavar="FILE",
        help="a text a line, JSON lines, a folder, any data set of captions (default: shapes)",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the encoders; the second in encoder_2/")
    parser.add_argument("--held-out", metavar="FILE", help="texts to measure on (default: some of --texts)")
    parser.add_argument("--text-encoder", metavar="SLOT", help="one alone: text_encoder or text_encoder_2")
    parser.add_argument("--config", metavar="FOLDER", help="of a single file: a pipeline of its kind, for its config")
    parser.add_argument("--steps", type=int, metavar="N", help="optimizer steps (default: 240 embedded, else 4,000)")
    parser.add_argument("--batch", type=int, metavar="N", help="texts a step (default: 64 embedded, else 32)")
    parser.add_argument("--learning-rate", type=float, metavar="X", help="peak (default: 5e-4 embedded, else 2e-5)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the order of texts (default: 0)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    parser.add_argument("--overwrite", action="store_true", help="delete what an earlier run wrote to --out")


def run(arguments: argparse.Namespace) -> int:
    """Run the trainer in a process of its own; its exit code."""
    if arguments.base is not None and arguments.texts is None:
        raise ValueError("--texts is missing: another base than the embedded one needs texts; name a file of prompts.")
    found = importlib.util.find_spec("train_encoder")
    if found is None or found.origin is None or importlib.util.find_spec("accelerate") is None:
        raise ValueError("lengthening needs the trainer, which is not installed; pip install 'debias-sd[train]'.")
    config = (
        Path(found.origin).parent / "configs" / ("lengthen_shapes.yaml" if arguments.base is None else "lengthen.yaml")
    )
    given = {
        "output_dir": arguments.out,
        "pretrained_model_name_or_path": arguments.base,
        "train_data": arguments.texts,
        "eval_data": arguments.held_out,
        "text_encoder": arguments.text_encoder,
        "pipeline_config": arguments.config,
        "max_train_steps": arguments.steps,
        "train_batch_size": arguments.batch,
        "learning_rate": arguments.learning_rate,
        "seed": arguments.seed,
        "resume_from_checkpoint": "latest" if arguments.resume else None,
        "overwrite_output_dir": True if arguments.overwrite else None,
    }
    if arguments.steps is not None:
        given |= {"lr_warmup_steps": arguments.steps // 20, "eval_steps": max(1, arguments.steps // 4)}
    options = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    return subprocess.run([sys.executable, "-m", "train_encoder", "--config", str(config), *options]).returncode
