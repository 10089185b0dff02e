"""`debias-sd`: one sub-command a file in `debias_sd/commands/`, found by name here.

Exit code 0 when done, 2 with one sentence on standard error for a user's fault. `--help` loads no torch.
"""

from collections.abc import Sequence

from debias_sd import __version__
from debias_sd.commands import calibrate, compare, convert, draw_set, evaluate, export, generate, report, tokens
from debias_sd.commands.parser import Parser, in_flags
from debias_sd.commands.terminal import lost_output, open_terminal, refuse

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
