"""Train the embedded world's Stable Diffusion: `python -m train_unet --config train_unet/configs/shapes.yaml`.

First the VAE, then the UNet on the base text encoder; both resume where they stopped. The result is a stock
Stable Diffusion folder at `<output_dir>/pipeline`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from debias_sd.commands.terminal import open_terminal
from train_unet.settings import parse_arguments


def main(arguments: list[str] | None = None) -> int:
    open_terminal()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        config = parse_arguments(arguments)
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
