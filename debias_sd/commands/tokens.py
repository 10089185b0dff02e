"""`debias-sd tokens`: what each text encoder reads of a prompt, window by window, and what it loses.

What a text encoder reads of a prompt, as lines for a terminal: a bar for each length, and the text after it.
"""

import argparse
import os
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from debias_sd.commands.arguments import (
    MEANING,
    OWN,
    SOURCE,
    STRETCHED,
    add_prompt_arguments,
    check_spelling,
    default_names,
    read_name,
    read_prompt,
    warn_unknown_words,
)
from debias_sd.commands.terminal import quiet_loading, say, say_json, shows_unicode, warn
from debias_sd.drawing import OWN_READINGS
from debias_sd.text import count_of

if TYPE_CHECKING:
    from debias_sd.prompts.token_report import Reading, TokenReport

HELP = "what each encoder reads and loses of a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `debias-sd tokens`."""
    add_prompt_arguments(parser)
    parser.add_argument(
        "--encoder",
        action="append",
        metavar=f"[NAME=]{SOURCE}",
        help=f"{MEANING}; may be repeated (default: base, long-clip, debias)",
    )
    parser.add_argument("--base", metavar="FOLDER", help="a pipeline's folder: all of its text encoders")
    parser.add_argument("--weighting", choices=("a1111",), help="read (weights:1.3) and BREAK; they cost no tokens")
    parser.add_argument("--words", action="store_true", help="show how many tokens each word has")
    parser.add_argument("--json", action="store_true", help="print JSON, with all texts in full")


def run(arguments: argparse.Namespace) -> int:
    """Read only tokenizers: no weights are loaded."""
    prompt = read_prompt(arguments)
    quiet_loading()
    found = list(_reports(arguments, prompt))
    if arguments.json:
        rows = [_row(name, own, report) for name, own, report in found]
        say_json({"prompt": prompt, "encoders": rows})
        return 0
    screen = Screen.of_output()
    for name, own, report in found:
        say(picture(name, report, screen, own=own, words=arguments.words))
        warn_unknown_words(name, report.unknown_words)
    _warn_of_tags(prompt, weighting=arguments.weighting)
    return 0


def _warn_of_tags(prompt: str, *, weighting: str | None) -> None:
    from debias_sd.prompts.markup import parse_a1111

    tags = parse_a1111(prompt).tags
    if tags:
        what = "is left out" if weighting else "is read as text"
        warn(f"{', '.join(tags)} in the prompt loads nothing and {what}; load it into the pipeline itself.")


def _reports(arguments: argparse.Namespace, prompt: str) -> Iterator[tuple[str, int, "TokenReport"]]:
    """Yield name, own length and report of each encoder that is asked for."""
    from debias_sd.encoder_folder import check_kind, find_encoder_folder, read_known_words, read_tokenizer
    from debias_sd.prompts.token_report import CONTEXTS, count_slot

    given = [read_name(word, flag="--encoder") for word in arguments.encoder or ()]
    given = [(name or source, OWN) if source in OWN_READINGS else (name, source) for name, source in given]
    if arguments.base and not any(source in (OWN, STRETCHED) for _, source in given):
        given.append((None, OWN))
    for name, source in given or [(None, source) for source in default_names(None)]:
        if arguments.base and source in (OWN, STRETCHED):
            base = Path(arguments.base).expanduser()
            longest = CONTEXTS[-1] if source == STRETCHED else None
            name = STRETCHED if name is None and longest else name
            yield from _pipeline_reports(base, prompt, name=name, longest=longest, weighting=arguments.weighting)
            continue
        check_spelling(source, flag="--encoder")
        name = source if name is None else name
        folder = find_encoder_folder(OWN if source == STRETCHED else source)
        if (folder / "model_index.json").is_file():
            raise ValueError(f"encoder {name} is a whole pipeline; give it as --base, which reads all of its encoders.")
        if (folder / "config.json").is_file():  # a tokenizer alone is enough
            check_kind(folder)
        tokenizer, known = read_tokenizer(folder), read_known_words(folder)
        own = CONTEXTS[-1] if source == STRETCHED else tokenizer.model_max_length
        lengths = sorted({*CONTEXTS, own})
        yield (
            name,
            own,
            count_slot(tokenizer, prompt, lengths=lengths, known_words=known, weighting=arguments.weighting),
        )


def _pipeline_reports(
    folder: Path, prompt: str, *, name: str | None, longest: int | None, weighting: str | None
) -> Iterator[tuple[str, int, "TokenReport"]]:
    """Yield the same of every text encoder of a pipeline; its CLIP encoders are lengthened to `longest`."""
    from transformers import AutoTokenizer

    from debias_sd.encoder_folder import read_json, read_tokenizer
    from debias_sd.pipelines.families import family_of
    from debias_sd.prompts.token_report import CONTEXTS, count_slot

    if not (folder / "model_index.json").is_file():
        raise ValueError(f"base {folder} has no model_index.json; give the folder of a whole pipeline.")
    index = read_json(folder / "model_index.json")
    if not isinstance(index, dict):
        raise ValueError(f"model_index.json of base {folder} is not a JSON object; copy the folder again.")
    for slot in family_of(index, index.get("_class_name", str(folder))).slots:
        place = folder / slot.tokenizer
        if slot.kind == "clip":
            tokenizer = read_tokenizer(place)
        else:
            try:
                tokenizer = AutoTokenizer.from_pretrained(place)
            except Exception as error:  # the Rust library raises bare Exception
                raise ValueError(f"the tokenizer files in {place} are damaged; copy them again.") from error
        own = longest if longest and slot.kind == "clip" else tokenizer.model_max_length
        lengths = sorted({*CONTEXTS, own}) if slot.kind == "clip" else ()
        report = count_slot(tokenizer, prompt, lengths=lengths, weighting=weighting, kind=slot.kind)
        yield f"{folder if name is None else name}/{slot.encoder}", own, report


def _row(name: str, own: int, report: "TokenReport") -> dict[str, object]:
    """Return what is printed as JSON of an encoder; its own length comes first, by itself."""
    readings = {str(length): asdict(reading) for length, reading in report.readings.items()}
    here = report.readings.get(own) or list(report.readings.values())[-1]
    return {
        "encoder": name,
        "tokens": report.tokens,
        **{key: value for key, value in asdict(here).items() if key != "windows"},
        "unknown_words": list(report.unknown_words),
        "readings": readings,
        "words": [
            {"word": word.text, "tokens": len(word.parts), "parts": list(word.parts), "weight": word.weight}
            for word in report.words
        ],
        "left_out": list(report.tags),
    }


SMALLEST, LARGEST = 40, 120  # columns
LOST_LINES = 6  # of lost text; JSON has all of it
_GREEN, _RED, _PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[0m"


@dataclass(frozen=True)
class Screen:
    """How wide a terminal is, and whether it shows block characters and colours."""

    width: int
    blocks: bool
    colour: bool

    @classmethod
    def of_output(cls) -> "Screen":
        """Return that of standard output: NO_COLOR and other encodings than UTF-8 mean plain ASCII bars."""
        plain = bool(os.environ.get("NO_COLOR")) or not shows_unicode()
        width = max(SMALLEST, min(LARGEST, get_terminal_size().columns))
        return cls(width, blocks=not plain, colour=not plain and sys.stdout.isatty())


def picture(name: str, report: "TokenReport", screen: Screen, *, own: int | None = None, words: bool = False) -> str:
    """Return the lines of one encoder, which by itself reads `own` tokens; with `words`, each word with its tokens."""
    lines = [f"{name}: {count_of(report.tokens, 'token')}" + (f", reads {own} at once" if own else "")]
    said = {length: _said(reading) for length, reading in report.readings.items()}
    room = max(8, screen.width - 7 - max(map(len, said.values())))
    for length, reading in report.readings.items():
        lines.append(f"{length:>4} [{_bar(reading, report.tokens, screen, room=room)}]{said[length]}")
        if reading.lost_tokens:
            lines += _indented(f"lost at {length}: {reading.lost.strip()}", screen, most=LOST_LINES)
        if len(reading.windows) > 1:
            for number, window in enumerate(reading.windows, 1):
                text = f"window {number}, {count_of(window.tokens, 'token')}: {' '.join(window.text.split())}"
                lines += _indented(text, screen, most=1)
    if words:
        listed = " ".join(f"{word.text}({len(word.parts)})" for word in report.words)
        lines += _indented(f"tokens of each word: {listed}", screen, most=None)
    if report.tags:
        lines += _indented(f"left out: {' '.join(report.tags)}", screen, most=LOST_LINES)
    return "\n".join(lines)


def _said(reading: "Reading") -> str:
    return f" reads {reading.kept_tokens}, loses {reading.lost_tokens or 'nothing'}"


def _bar(reading: "Reading", tokens: int, screen: Screen, *, room: int) -> str:
    """Return a bar of `room` columns, which are the whole prompt: "####----". A loss is always seen."""
    full = room if not reading.lost_tokens else min(room - 1, round(room * reading.kept_tokens / tokens))
    read, lost = ("█", "░") if screen.blocks else ("#", "-")
    kept, gone = read * full, lost * (room - full)
    if screen.colour:
        kept, gone = f"{_GREEN}{kept}{_PLAIN}", f"{_RED}{gone}{_PLAIN}" if gone else ""
    return kept + gone


def _indented(text: str, screen: Screen, *, most: int | None) -> list[str]:
    """Return the text in lines as wide as the screen; at most that many, "..." for the rest."""
    # Only what can be shown is wrapped: a prompt may be a whole book.
    shown = text if most is None else text[: screen.width * most]
    indent = " " * 5
    return textwrap.wrap(
        shown if len(shown) == len(text) else f"{shown} ...",
        screen.width,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        max_lines=most,
        placeholder=" ...",
    )
