"""`debias-sd`: one sub-command a file in `debias_sd/commands/`, found by name here.

Exit code 0 when done, 2 with a sentence on standard error for a user's fault, with the name nearest to a wrong one.
`--help` loads no torch.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Collection, Sequence
from typing import Any, NoReturn

from debias_sd import __version__
from debias_sd.commands import (
    calibrate,
    compare,
    convert,
    draw_set,
    evaluate,
    export,
    generate,
    lengthen,
    report,
    tokens,
)
from debias_sd.commands.terminal import lost_output, open_terminal, refuse

_CHOICE = re.compile(r"argument (.+?): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)
# What is left of Python in a sentence when the flags are in it: an argument ("config= the folder").
_ARGUMENT = re.compile(r"(?<=\s)[a-z_0-9]+=(?=\s)")


class Parser(argparse.ArgumentParser):
    """argparse with one sentence for a fault, and the nearest name for a misspelt option or sub-command."""

    _given: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        if "are required" in message:  # a misspelt one is the cause, and argparse would name it only afterwards
            known = tuple(self._option_string_actions)
            words = [word.partition("=")[0] for word in self._given if word.startswith("--") and word != "--"]
            wrong = [word for word in words if not any(name.startswith(word) for name in known)]
            message = self._unknown(wrong[0]) if wrong else message
        choice = _CHOICE.fullmatch(message)
        if choice:
            place, value, allowed = choice.groups()
            names = [name.strip("'") for name in allowed.split(", ")]
            message = f"{place} is {value!r} but must be one of {', '.join(names)}{_meant(value, names)}"
        self.exit(refuse(f"{message}; see {self.prog} --help.", program=self.prog))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuse here what is not known: the parser of a sub-command knows its options, the one above it does not."""
        self._given = sys.argv[1:] if args is None else list(args)
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(self._unknown(rest[0]))
        return found, rest

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"{word!r} is one argument too many; put a text with spaces in quotes"
        name = word.partition("=")[0]
        return f"{name} is not an option of {self.prog}{_meant(name, list(self._option_string_actions))}"

    @property
    def flags(self) -> dict[str, str]:
        """The long option of each argument, by the name that it has in Python."""
        options = [action for action in self._actions if action.option_strings]
        return {action.dest: action.option_strings[-1] for action in options}


def _meant(word: str, names: Collection[str]) -> str:
    near = difflib.get_close_matches(word.replace("_", "-"), names, n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def in_flags(sentence: str, flags: dict[str, str]) -> str:
    """Return a sentence of the library with the arguments of its functions as the options of a command.

    >>> flags = {"encoder": "--encoder", "encoder_2": "--encoder-2", "window": "--window"}
    >>> in_flags("no encoder is named for X; give encoder= a folder, or encoder='base'.", flags)
    'no encoder is named for X; give --encoder a folder, or --encoder base.'
    >>> in_flags("encoder_2 is given and FLUX has one text encoder; leave encoder_2 out.", flags)
    '--encoder-2 is given and FLUX has one text encoder; leave --encoder-2 out.'
    >>> in_flags("window is 300, this text encoder reads 3 to 248 tokens; use 77, 248 or 'auto'.", flags)
    "--window is 300, this text encoder reads 3 to 248 tokens; use 77, 248 or 'auto'."
    """
    for name, flag in flags.items():
        word = re.escape(name)
        sentence = re.sub(rf"(?<!\S){word}='([^']*)'", rf"{flag} \1", sentence)
        sentence = re.sub(rf"(?<!\S){word}=(?=\s)", flag, sentence)
        sentence = re.sub(rf"^{word}(?= (?:is|are|has) )|(?<=\bleave ){word}(?= out\b)", flag, sentence)
        if "_" in name:  # else it may be a word of English
            sentence = re.sub(rf"(?<![\w./'-]){word}(?![\w./'=-])", flag, sentence)
    sentence = sentence.replace("with stretch()", "by debias-sd convert --stretch")
    sentence = sentence.replace("an encoder for load_debias_pipeline()", "one with --encoder")
    if _ARGUMENT.search(sentence):
        sentence = f"{sentence.rstrip('.')} (in Python, as an argument of load_debias_pipeline)."
    return sentence


COMMANDS = {
    "generate": generate,
    "compare": compare,
    "tokens": tokens,
    "evaluate": evaluate,
    "calibrate": calibrate,
    "report": report,
    "draw-set": draw_set,
    "convert": convert,
    "export": export,
    "lengthen": lengthen,
}


def build_parser() -> Parser:
    """Return the parser of all commands; `flags` in what it reads are those of the command."""
    parser = Parser(
        prog="debias-sd", description="Long prompts for Stable Diffusion. Without options the embedded models are used."
    )
    parser.add_argument("--version", action="version", version=f"debias-sd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run, flags=subparser.flags)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    open_terminal()
    arguments = build_parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
    except ValueError as error:
        return refuse(in_flags(str(error), arguments.flags))
    except KeyboardInterrupt:
        return 130
    lost = lost_output()
    return code if lost is None else refuse(f"standard output cannot be written ({lost}); give it another place.")
