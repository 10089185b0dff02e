"""What a command says: its result on standard output, warnings on standard error."""

import logging
import sys


def say(text: str) -> None:
    """Write one result."""
    sys.stdout.write(text + "\n")


def warn(text: str) -> None:
    """Write one warning."""
    sys.stderr.write(f"debias-sd: warning: {text}\n")


def quiet_loading() -> None:
    """Leave out the progress bars and notes of loading, so that an error is one sentence on standard error."""
    from huggingface_hub.utils import disable_progress_bars
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bars()
    disable_progress_bar()
    logging.getLogger("diffusers").setLevel(logging.ERROR)
    logging.getLogger("transformers").setLevel(logging.ERROR)
