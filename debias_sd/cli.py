"""`debias-sd`: one sub-command a file in `debias_sd/commands/`, found by name here.

Exit code 0 when done, 2 with one sentence on standard error for a user's fault. `--help` loads no torch.
"""

import argparse
import sys
from collections.abc import Sequence

from debias_sd import __version__
from debias_sd.commands import calibrate, compare, convert, draw_set, evaluate, export, generate, report, tokens

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
}


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="debias-sd", description="Long prompts for Stable Diffusion. Without options the embedded models are used."
    )
    parser.add_argument("--version", action="version", version=f"debias-sd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.HELP, description=command.__doc__)
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code."""
    arguments = build_parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except ValueError as error:
        print(f"debias-sd: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
