"""`debias-sd tokens`: what each text encoder reads of a prompt, and what it loses."""

import argparse
import json
from dataclasses import asdict

from debias_sd.commands.prompt import add_prompt_arguments, read_prompt, warn_unknown_words
from debias_sd.commands.terminal import quiet_loading, say

HELP = "what each encoder reads and loses of a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd tokens`."""
    add_prompt_arguments(parser)
    parser.add_argument(
        "--encoder",
        action="append",
        metavar="NAME|FOLDER|ID",
        help="base, long-clip, debias, a folder or a hub id; may be repeated (default: the three)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Read only tokenizers: no weights are loaded."""
    prompt = read_prompt(arguments)
    from debias_sd.encoder_folder import EMBEDDED

    quiet_loading()
    rows = [token_row(name, prompt) for name in arguments.encoder or EMBEDDED]
    if arguments.json:
        say(json.dumps({"prompt": prompt, "encoders": rows}, indent=2, ensure_ascii=False))
        return 0
    for row in rows:
        say(_line(row))
        warn_unknown_words(str(row["encoder"]), row["unknown_words"])
    return 0


def token_row(name: str, prompt: str) -> dict[str, object]:
    """Return what the encoder `name` reads of `prompt`: counts, kept and lost text, words it was never trained on."""
    from debias_sd.encoder_folder import find_encoder_folder, read_known_words, read_tokenizer
    from debias_sd.tokens import count_tokens

    folder = find_encoder_folder(name)
    tokenizer = read_tokenizer(folder)
    length = tokenizer.model_max_length
    report = count_tokens(tokenizer, prompt, lengths=(length,), known_words=read_known_words(folder))
    return {"encoder": name, "tokens": report.tokens, **asdict(report.readings[length]),
            "unknown_words": list(report.unknown_words)}  # fmt: skip


def _line(row: dict[str, object]) -> str:
    head = f"{row['encoder']}: reads {row['kept_tokens']} of {row['tokens']} tokens ({row['length']} positions)"
    return f"{head}, loses: {row['lost']}" if row["lost_tokens"] else f"{head}, loses nothing"
