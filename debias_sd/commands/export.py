"""`debias-sd export`: write an encoder for ComfyUI and Forge, open_clip or Long-CLIP."""

import argparse

from debias_sd.commands.terminal import quiet_loading, say, warn

TARGETS = ("comfyui", "open_clip", "long-clip")
HELP = "write an encoder for ComfyUI, open_clip or Long-CLIP"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd export`."""
    parser.add_argument("encoder", metavar="ENCODER", help="base, long-clip, debias, a folder or a hub id")
    parser.add_argument("out", metavar="OUT", help="a .safetensors file; long-clip: or .pt; open_clip: a new folder")
    parser.add_argument(
        "--to",
        choices=TARGETS,
        required=True,
        help="comfyui: one file for ComfyUI and Forge; open_clip: a folder for local-dir:; long-clip: both tables",
    )
    parser.add_argument("--image-tower", action="store_true", help="comfyui: the image tower too")


def run(arguments: argparse.Namespace) -> int:
    """Write the file or folder, say what is in it and what its readers will not do."""
    from debias_sd.checkpoints.export import export_encoder

    quiet_loading()
    written = export_encoder(arguments.encoder, arguments.out, to=arguments.to, image_tower=arguments.image_tower)
    dtype = str(written.dtype).removeprefix("torch.")
    say(f"{written.path}: {written.tensors} tensors for {arguments.to}, {written.positions} positions, {dtype}")
    for note in written.notes:
        warn(note)
    return 0
