"""The denoising steps and the guidance of a command: one default for the embedded pipeline, one for real ones."""

import argparse
import math

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
        raise ValueError(f"--steps is {arguments.steps}, must be 1 to 1000.")
    for option in ("guidance_scale", "true_cfg_scale"):
        scale = getattr(arguments, option, None)
        if scale is not None and not math.isfinite(scale):
            raise ValueError(f"--{option.replace('_', '-')} is {scale}, must be a finite number.")
    if not 0 <= arguments.seed < 2**63:
        raise ValueError(f"--seed is {arguments.seed}, must be 0 to 2**63 - 1.")


def resolve_guidance(arguments: argparse.Namespace, pipe: object) -> None:
    """Fill in the guidance that was not given, by the pipeline; ValueError for one that the pipeline does not use."""
    from debias_sd.pipelines.guidance import check_guidance, default_guidance, reads_guidance

    given = arguments.guidance_scale
    if given is not None and not reads_guidance(pipe):
        raise ValueError(
            f"--guidance-scale is {given:g}, this {type(pipe).__name__} was distilled without guidance and does not "
            "use it; leave it out."
        )
    if given is None:
        arguments.guidance_scale = EMBEDDED["guidance_scale"] if arguments.base is None else default_guidance(pipe)
    negative = {"true_scale": getattr(arguments, "true_cfg_scale", None)}
    negative["negative"] = getattr(arguments, "negative_prompt", "")
    check_guidance(pipe, scale=arguments.guidance_scale, **negative)
