"""What the operator configured, the ranges of a request, and names in place of the operator's paths."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

EMBEDDED_ENCODERS = {"base": "base", "long-clip": "long-clip", "debias": "debias"}
PROMPT_CHARACTERS = 20_000
NEGATIVE_CHARACTERS = 2_000
STEPS = (1, 100)
GUIDANCE = (0.0, 20.0)
SEED = (0, 2**32 - 1)
SEEDS = (1, 8)
SIDES = (256, 384, 512, 768, 1024)
WAITING = 32  # people in the queue; one more is refused
MAX_ENCODERS = 6
DTYPES = ("float32", "float16", "bfloat16")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)
_NAME = re.compile(r"[\w][\w .+-]{0,39}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The models that the page may name, and where it listens; nothing of this comes from a request."""

    base: str | None = None
    """Folder or hub id of a pipeline; None is the embedded one."""
    encoders: Mapping[str, str] = dataclasses.field(default_factory=lambda: dict(EMBEDDED_ENCODERS))
    """Name on the page -> embedded name, folder or hub id; `base` is the pipeline's own encoder."""
    device: str = "cpu"
    dtype: str = "float32"
    host: str = "127.0.0.1"
    port: int | None = None
    share: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the app answers, besides its own: of a proxy in front of it, or in the network."""
    judge: str | None = None
    """`clip:` or `vqa:` and a folder or hub id: who judges pictures of a real base; the embedded one has a checker."""
    judge_report: str | None = None
    """A report of `debias-sd calibrate` with the judge's thresholds."""
    example: bool = True
    """Whether the embedded models draw the first example when the app starts, for every page to begin with."""
    own_examples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The operator's example prompts by title, shown before the built-in ones; `app.prompt_box` reads them."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.encoders) <= MAX_ENCODERS:
            raise ValueError(f"--encoders names {len(self.encoders)} encoders; it must name 1 to {MAX_ENCODERS}.")
        for name in self.encoders:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"--encoders has the name {name!r}; a name must be up to 40 letters, digits, spaces, dots, + and -."
                )
        if self.dtype not in DTYPES:
            raise ValueError(f"--dtype is {self.dtype}; it must be one of {', '.join(DTYPES)}.")
        if self.judge is not None and self.base is None:
            raise ValueError(f"--judge is {self.judge}, but the embedded models have their own; leave it out.")
        if self.judge_report is not None and self.judge is None:
            raise ValueError("--judge-report is given without --judge; name the judge that it is about.")
        if self.port is not None and not 1 <= self.port <= 65535:
            raise ValueError(f"--port is {self.port}; it must be 1 to 65535.")
        for name in self.allowed_hosts:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(
                    f"--allowed-hosts has {name!r}, which is not a host name; give names like app.example.org, without "
                    "a scheme, port or path."
                )

    @property
    def is_embedded(self) -> bool:
        """Whether the pictures are the embedded world's."""
        return self.base is None

    @property
    def sources(self) -> tuple[str, ...]:
        """What the operator named to load from: folders, files and hub ids."""
        judge = (self.judge or "").partition(":")[2]
        return tuple(filter(None, (self.base, *self.encoders.values(), judge, self.judge_report)))

    @property
    def is_loopback(self) -> bool:
        """Whether it listens on this machine's own address only."""
        return self.host in LOOPBACK

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches the page: then the command line may name the operator's folders."""
        return self.is_loopback and not self.share and not self.allowed_hosts


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
