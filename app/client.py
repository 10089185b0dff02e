"""`python -m app.client URL PROMPT`: an example of the API's use; prints the verdicts, writes one PNG per encoder.

python -m app --port 7860 &
python -m app.client http://127.0.0.1:7860 "A large blue ring is in the center." --seed 3
"""

from __future__ import annotations

import argparse
import base64
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from gradio_client import Client
from gradio_client.exceptions import AppError


def compare(url: str, prompt: str, **settings: object) -> dict:
    """The last answer of /compare: settings, sentences, and per encoder its pictures with verdicts."""
    client = Client(url, verbose=False)
    return client.predict(prompt, api_name="/compare", **settings)


def save_pictures(answer: dict, folder: Path) -> list[Path]:
    """Write every picture as ENCODER-SEED.png."""
    paths = []
    for name, encoder in answer["encoders"].items():
        for picture in encoder["pictures"]:
            paths.append(folder / f"{name}-{picture['seed']}.png")
            paths[-1].write_bytes(base64.b64decode(picture["png"].partition(",")[2]))
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, print, save; exit code 2 with the server's sentence when it refuses."""
    parser = argparse.ArgumentParser(prog="python -m app.client", description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("prompt")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out", type=Path, default=Path("."), metavar="FOLDER")
    arguments = parser.parse_args(argv)
    try:
        answer = compare(arguments.url, arguments.prompt, seed=arguments.seed, steps=arguments.steps)
    except AppError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    except httpx.ConnectError:
        sys.stderr.write(f"no app answers at {arguments.url}; start one with `python -m app`, it says its address.\n")
        return 2
    for name, encoder in answer["encoders"].items():
        marks = [verdict["mark"] for picture in encoder["pictures"] for verdict in picture["verdicts"]]
        sys.stdout.write(f"{name}: {encoder['fault'] or ', '.join(marks)}\n")
    for path in save_pictures(answer, arguments.out):
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
