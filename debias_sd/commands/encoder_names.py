"""What the name of a text encoder means, the same for every command and for the app.

| name | with a base | without |
|---|---|---|
| base | the base pipeline's own encoder | the embedded one of that name |
| stretched | the base's own, lengthened without training | the same of the embedded pipeline |
| long-clip, debias | the embedded ones | |
| a folder, a hub id | that encoder | |

NAME=SOURCE gives one of these another name in what a command says and writes.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from debias_sd.encoder import TextEncoder

OWN, STRETCHED = "base", "stretched"
SOURCE = "NAME|FOLDER|ID"
MEANING = (
    "base (the pipeline's own), stretched (its own, lengthened without training), long-clip, debias, a folder or a hub "
    "id"
)


def default_names(base: str | None) -> tuple[str, ...]:
    """Return the encoders that fit a base by default: those of the embedded pipeline, or what any other one has."""
    from debias_sd.encoder_folder import EMBEDDED

    return EMBEDDED if base is None else (OWN, STRETCHED)


def read_name(word: str, *, flag: str) -> tuple[str | None, str]:
    """Return the name, None without one, and the source of `NAME=SOURCE` or `SOURCE`; ValueError for half of it."""
    name, separator, source = word.partition("=")
    if not separator or Path(word).is_dir():
        name, source = None, word
    if name == "" or not source:
        raise ValueError(f"{flag} is {word!r}, expected NAME=SOURCE or SOURCE; write e.g. mine=runs/debias.")
    return name, source


def read_names(words: Sequence[str], *, flag: str) -> dict[str, str]:
    """Return sources by name; one without a name has that of the last part of its folder or id.

    Raises ValueError for a name that is given twice.

    >>> read_names(["debias", "Mine=runs/s0/debias", "org/long-clip-sd/"], flag="--encoders")
    {'debias': 'debias', 'Mine': 'runs/s0/debias', 'long-clip-sd': 'org/long-clip-sd/'}
    """
    encoders: dict[str, str] = {}
    for word in words:
        name, source = read_name(word, flag=flag)
        name = Path(source).name or source if name is None else name
        if name in encoders:
            raise ValueError(f"{flag} has the name {name!r} twice; give one of them another, as NAME=SOURCE.")
        encoders[name] = source
    return encoders


def load_named(source: str, *, base: str | None, flag: str) -> TextEncoder | str | None:
    """Return the encoder that `source` means with `base`: None is the base as it is, "stretched" its own lengthened.

    Raises ValueError, with the nearest name for one that is misspelt, when it is nowhere or cannot be read.
    """
    from debias_sd.encoder import TextEncoder

    if source == STRETCHED:
        return STRETCHED
    if source == OWN and base is not None:
        return None
    check_spelling(source, flag=flag)
    return TextEncoder.load(source)


def hash_named(source: str, encoder: TextEncoder | str | None) -> str | None:
    """Return the hash of the weights that `source` names; None where they are the base pipeline's own."""
    from debias_sd.encoder import TextEncoder
    from debias_sd.encoder_folder import find_encoder_folder
    from debias_sd.report import hash_file

    own = not isinstance(encoder, TextEncoder)
    return None if own else hash_file(find_encoder_folder(source) / "model.safetensors")


def check_spelling(source: str, *, flag: str) -> None:
    """Raise ValueError with the nearest name for what is neither a name, nor there, nor the shape of a hub id."""
    from debias_sd.encoder_folder import EMBEDDED

    known = (*EMBEDDED, STRETCHED)
    if source in known or "/" in source or Path(source).expanduser().exists():
        return
    near = difflib.get_close_matches(source.lower(), known, n=1)
    if near:
        raise ValueError(f"{flag} is {source!r}, which is not a folder or a known name; did you mean {near[0]}?")
