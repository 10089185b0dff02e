"""Train the embedded world's Stable Diffusion: `python -m train_unet --config train_unet/configs/shapes.yaml`.

First the VAE, then the UNet on the base text encoder; both resume where they stopped. The result is a stock
Stable Diffusion folder at `<output_dir>/pipeline`.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from debias_sd.commands.terminal import open_terminal
from train_unet.config import UnetConfig, load_config


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
    kinds = {field.name: field.type for field in dataclasses.fields(UnetConfig)}
    given: list[tuple[str, list[str]]] = []
    for part in rest:
        if part.startswith("--"):
            key, equals, value = part[2:].partition("=")
            given.append((key.replace("-", "_"), [value] if equals else []))
        elif given:
            given[-1][1].append(part)
        else:
            raise ValueError(f"settings come as --key value pairs, found {' '.join(rest)}.")
    values: dict[str, str] = {}
    for name, parts in given:
        kind = kinds.get(name, "")
        if kind.startswith("tuple"):  # A B, and given twice
            parts = [part for other, several in given if other == name for part in several]
            parts = [f"[{', '.join(parts)}]"] if len(parts) > 1 else parts
        elif kind == "bool":
            parts = parts or ["true"]  # the bare flag
        if len(parts) != 1:
            raise ValueError(f"settings come as --key value pairs, found {' '.join(rest)}.")
        values[name] = parts[0]
    return known.config, values


def main(arguments: list[str] | None = None) -> int:
    open_terminal()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        path, overrides = parse_arguments(arguments)
        config = load_config(path, overrides)
        from train_unet.run import run  # takes seconds: a wrong setting is told before

        run(config, command=["python", "-m", "train_unet", *arguments])
    except ValueError as error:
        print(f"train_unet: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("train_unet: stopped by Ctrl-C; the same command goes on from the last saved state.", file=sys.stderr)
        return 130
    except Exception as error:
        from debias_sd.run_state import find_disk_fault

        fault = find_disk_fault(error, Path(config.output_dir))
        if fault is None:
            raise
        advice = "what was saved before stays: make room and give the same command again"
        print(f"train_unet: {fault}; {advice}.", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
