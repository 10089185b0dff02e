"""The denoising steps and the guidance of a command: one default for the embedded pipeline, one for real ones."""

import argparse
import math

EMBEDDED = {"steps": 25, "guidance_scale": 2.0}  # its results are measured with these
REAL = {"steps": 30, "guidance_scale": 7.5}  # what Stable Diffusion 1.x is used with


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare --steps and --guidance-scale."""
    both = "(default: {} with the embedded base, {} with another)"
    steps, scale = ((EMBEDDED[name], REAL[name]) for name in ("steps", "guidance_scale"))
    parser.add_argument("--steps", type=int, metavar="N", help="denoising steps " + both.format(*steps))
    parser.add_argument("--guidance-scale", type=float, metavar="SCALE", help="guidance " + both.format(*scale))


def settle_sampling(arguments: argparse.Namespace) -> None:
    """Fill in what was not given, by the base, and check it and the seed; ValueError for what no picture can have."""
    defaults = EMBEDDED if arguments.base is None else REAL
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    if not 1 <= arguments.steps <= 1000:
        raise ValueError(f"--steps is {arguments.steps}, allowed are 1 to 1000; correct it.")
    if not math.isfinite(arguments.guidance_scale):
        raise ValueError(f"--guidance-scale is {arguments.guidance_scale}, a finite number is needed; correct it.")
    if not 0 <= arguments.seed < 2**63:
        raise ValueError(f"--seed is {arguments.seed}, allowed are 0 to 2**63 - 1; correct it.")
