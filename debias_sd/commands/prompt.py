"""The prompt of a command: an argument, a text file or standard input."""

import argparse
import sys
from collections.abc import Iterable

from debias_sd.commands.terminal import warn
from debias_sd.text_files import decode_text, read_text


def add_prompt_arguments(parser: argparse.ArgumentParser) -> None:
    """Add PROMPT and --prompt-file."""
    parser.add_argument("prompt", nargs="?", help="the prompt, of any length; - reads standard input")
    parser.add_argument("--prompt-file", metavar="FILE", help="read the prompt from a text file (UTF-8)")


def read_prompt(arguments: argparse.Namespace) -> str:
    """Return the prompt; ValueError when there is none or two, when it is empty, or when the file is not text."""
    if (arguments.prompt is None) == (arguments.prompt_file is None):
        raise ValueError("give one prompt, either as the argument or with --prompt-file.")
    given = arguments.prompt_file
    if "-" in (arguments.prompt, given):
        prompt = _read_input()
    else:
        prompt = arguments.prompt if given is None else read_text(given, what="prompt file").strip()
    if not prompt.strip():
        raise ValueError("the prompt is empty; write what the picture should show.")
    return prompt


def _read_input() -> str:
    if sys.stdin is None:
        raise ValueError("standard input is closed, so - has no prompt; give the prompt itself.")
    return decode_text(sys.stdin.buffer.read(), "standard input").strip()


def warn_unknown_words(encoder: str, words: Iterable[str]) -> None:
    """Name the words that the encoder was never trained on, if there are any."""
    words = list(words)
    if words:
        shown = [word if len(word) <= 40 else f"{word[:39]}…" for word in words[:10]]
        named = ", ".join(shown) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
        warn(f"encoder {encoder} was never trained on: {named}")
