"""Names in place of paths: nothing that leaves the app says where the operator's files lie."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ABSOLUTE = r"(?:[A-Za-z]:[\\/]|\\\\|~?/(?!/))"
_QUOTED = re.compile(rf"(['\"`])({_ABSOLUTE}[^'\"`]*)\1")
_BELOW = r"(?:[\\/][^\s'\"`,;:()<>|]+)?"
_PLAIN = re.compile(rf"(?<![\w/.\\]){_ABSOLUTE}[^\s'\"`,;:()<>|]+")


def name_of(source: str) -> str:
    """The last part of a path or a hub id.

    >>> name_of("/home/me/my models/clip/"), name_of("C:\\\\models\\\\clip"), name_of("openai/clip")
    ('clip', 'clip', 'clip')
    """
    return re.split(r"[\\/]", source.rstrip("\\/"))[-1]


def names_only(text: str, sources: Sequence[str] = ()) -> str:
    """`text` with the last part in place of every absolute path, and of `sources`: what the operator named, as it is.

    >>> names_only("encoder /home/me/runs/debias holds NaN; see '/home/me/my runs/x.json' or https://a.org/b.")
    "encoder debias holds NaN; see 'x.json' or https://a.org/b."
    >>> names_only("judge clip:/my models/judge fails and/or 1/2 is read", ["/my models/judge"])
    'judge clip:judge fails and/or 1/2 is read'
    """
    text = _QUOTED.sub(lambda found: found[1] + name_of(found[2]) + found[1], text.replace("file://", ""))
    for source in sorted(sources, key=len, reverse=True):
        if re.search(r"[\\/]", source):  # it may hold spaces, and something in it may be meant
            text = re.sub(re.escape(source) + _BELOW, lambda found: name_of(found[0]), text)
    return _PLAIN.sub(lambda found: name_of(found[0]), text)
