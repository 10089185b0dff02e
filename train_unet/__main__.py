"""Train the embedded world's Stable Diffusion: `python -m train_unet --config train_unet/configs/shapes.yaml`.

First the VAE, then the UNet on the base text encoder; both resume where they stopped. The result is a stock
Stable Diffusion folder at `<output_dir>/pipeline`.
"""

from __future__ import annotations

import argparse
import sys

from debias_sd.commands.terminal import open_terminal


def parse_arguments(arguments: list[str]) -> tuple[str | None, dict[str, str]]:
    """Split the command line into the config file and `--key value` overrides."""
    parser = argparse.ArgumentParser(
        prog="python -m train_unet",
        usage="%(prog)s [--config FILE] [--key value ...]",
        description=__doc__.splitlines()[0],
        epilog="Every setting in train_unet/config.py is a --key; what stands here replaces the file's value.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", help="YAML file, e.g. train_unet/configs/shapes.yaml", metavar="FILE")
    known, rest = parser.parse_known_args(arguments)
    if len(rest) % 2 or any(not key.startswith("--") for key in rest[::2]):
        raise ValueError(f"settings come as --key value pairs, found {' '.join(rest)}.")
    return known.config, {key[2:].replace("-", "_"): value for key, value in zip(rest[::2], rest[1::2], strict=True)}


def main(arguments: list[str] | None = None) -> int:
    open_terminal()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        path, overrides = parse_arguments(arguments)
        from train_unet.config import load_config

        config = load_config(path, overrides)
        from train_unet.run import run  # takes seconds: a wrong setting is told before

        folder = run(config, command=["python", "-m", "train_unet", *arguments])
    except ValueError as error:
        print(f"train_unet: {error}", file=sys.stderr)
        return 2
    print(f"written to {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
