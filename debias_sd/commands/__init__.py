"""The sub-commands of `debias-sd`, one a file, each with three names that cli.py reads.

`HELP` is its line in the overview, `add_arguments(parser)` declares its options, `run(arguments)` does it and returns
the exit code; a user's fault is a ValueError of one sentence. Heavy imports are inside `run`.
"""
