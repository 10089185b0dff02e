"""What may be asked: the operator's settings, and a person's request, checked on the server whatever the page allowed.

A request is written out as a link that sets the page up and as the command line that draws the same.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from debias_sd.commands.arguments import EMBEDDED, REAL
from debias_sd.tokens import check_text

CHOSEN = ("base", "long-clip", "debias")  # of the embedded encoders, what a page begins with
OFFERED = ("base", "chunked", "sentences", "stretched", "long-clip", "debias")
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
LINK_CHARACTERS = 6_000  # browsers and servers take longer ones, chat programs and mail do not
_HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*\.?", re.ASCII)
_ORIGIN = re.compile(rf"https?://{_HOST_NAME.pattern}(:\d{{1,5}})?", re.ASCII)
_NAME = re.compile(r"[\w][\w .+-]{0,39}")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The models that the page may name, and where it listens; nothing of this comes from a request."""

    base: str | None = None
    """Folder or hub id of a pipeline; None is the embedded one."""
    encoders: Mapping[str, str] = dataclasses.field(default_factory=lambda: {name: name for name in OFFERED})
    """Name on the page -> embedded name, folder or hub id; `base` is the pipeline's own encoder."""
    device: str = "cpu"
    dtype: str = "float32"
    host: str = "127.0.0.1"
    port: int | None = None
    share: bool = False
    allowed_hosts: tuple[str, ...] = ()
    """Names under which the app answers, besides its own: of a proxy in front of it, or in the network."""
    framed_by: tuple[str, ...] = ()
    """Origins whose pages may show the app in a frame, as the hub does a Space; without them none may."""
    judge: str | None = None
    """`clip:` or `vqa:` and a folder or hub id: who judges pictures of a real base; the embedded one has a checker."""
    judge_report: str | None = None
    """A report of `debias-sd calibrate` with the judge's thresholds."""
    example: bool = True
    """Whether the embedded models draw the first example when the app starts, for every page to begin with."""
    own_examples: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """The operator's example prompts by title, shown before the built-in ones; `app.prompts` reads them."""

    @property
    def chosen(self) -> tuple[str, ...]:
        """The encoders of a page that has just been opened, and of a request that names none."""
        is_default = self.is_embedded and self.encoders == Settings().encoders
        return CHOSEN if is_default else tuple(self.encoders)

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

        for origin in self.framed_by:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"--framed-by has {origin!r}; give origins like https://example.org, without a path.")

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


@dataclasses.dataclass(frozen=True)
class Request:
    """One comparison; make it with `check_request`. `seeds` pictures per encoder, from `seed` on."""

    prompt: str
    encoders: tuple[str, ...]
    negative: str = ""
    seed: int = 0
    seeds: int = 1
    steps: int = 25
    guidance: float = 2.0
    side: int | None = None
    """Height and width in pixels; None is the pipeline's own."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data that `check_request` takes back."""
        return dataclasses.asdict(self) | {"encoders": list(self.encoders)}

    def as_query(self) -> str | None:
        """The query string of a link that sets the page up; None when it is too long for one."""
        plain = {name: value for name, value in self.as_dict().items() if value not in ("", None)}
        query = urlencode(plain | {"encoders": ",".join(self.encoders)})
        return query if len(query) <= LINK_CHARACTERS else None

    def as_command(self, settings: Settings, *, shared: bool = False) -> str:
        """The commands that draw the same pictures, one a seed.

        Folders are named on a private page only, and not in what is taken along from it (`shared`).
        """
        words, is_named = ["debias-sd", "compare"], settings.is_private and not shared
        if settings.base is not None:
            words += ["--base", settings.base if is_named else "BASE"]
        sources = [settings.encoders[name] for name in self.encoders]
        is_embedded = settings.is_embedded and set(sources) <= set(OFFERED)
        words += ["--encoders", *(sources if is_named or is_embedded else self.encoders)]
        words += ["--steps", str(self.steps), "--guidance-scale", f"{self.guidance:g}"]
        if self.negative:
            words += ["--negative-prompt", self.negative]
        if self.side is not None:
            words += ["--size", str(self.side)]
        if (settings.device, settings.dtype) != ("cpu", "float32"):
            words += ["--device", settings.device, "--dtype", settings.dtype]
        seeds = range(self.seed, self.seed + self.seeds)
        return "\n".join(
            shlex.join([*words, "--seed", str(seed), "--out", f"compare-{seed}.png", "--", self.prompt])
            for seed in seeds
        )


def check_request(raw: Mapping[str, Any], settings: Settings) -> Request:
    """Return `raw` as a request; missing values get the defaults. ValueError with one sentence for any other fault."""
    fields = {field.name for field in dataclasses.fields(Request)}
    unknown = sorted(set(raw) - fields)
    if unknown:
        raise ValueError(f"unknown setting {unknown[0]!r}; the settings are {', '.join(sorted(fields))}.")
    if "prompt" not in raw:
        raise ValueError("there is no prompt; write what the picture should show.")
    defaults = EMBEDDED if settings.is_embedded else REAL
    return Request(
        prompt=_text(raw["prompt"], "prompt", PROMPT_CHARACTERS, needed=True),
        encoders=_encoders(raw.get("encoders"), settings),
        negative=_text(raw.get("negative") or "", "negative prompt", NEGATIVE_CHARACTERS),
        seed=_whole(raw.get("seed", 0), "seed", SEED),
        seeds=_whole(raw.get("seeds", 1), "number of seeds", SEEDS),
        steps=_whole(raw.get("steps", defaults["steps"]), "number of steps", STEPS),
        guidance=_number(raw.get("guidance", defaults["guidance_scale"]), "guidance", GUIDANCE),
        side=_side(raw.get("side"), settings),
    )


def read_query(query: str) -> dict[str, Any]:
    """The settings in a link's query string, numbers as numbers; other names (gradio has its own) are left out."""
    fields = {field.name for field in dataclasses.fields(Request)}
    raw: dict[str, Any] = {name: value for name, value in parse_qsl(query) if name in fields}
    if "encoders" in raw:
        raw["encoders"] = raw["encoders"].split(",")
    for name in ("seed", "seeds", "steps", "guidance", "side"):
        if name in raw:
            raw[name] = _parsed(raw[name])
    return raw


def _parsed(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text[:40])
        except ValueError:
            continue
    return text


def _text(value: Any, what: str, limit: int, *, needed: bool = False) -> str:
    if not isinstance(value, str):
        raise ValueError(f"the {what} is of type {type(value).__name__}; it must be text.")
    if needed and not value.strip():
        raise ValueError(f"the {what} is empty; write what the picture should show.")
    if len(value) > limit:
        raise ValueError(f"the {what} has {len(value):,} characters and may have at most {limit:,}; shorten it.")
    check_text(value)
    return value


def _whole(value: Any, what: str, allowed: tuple[int, int]) -> int:
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_whole or value != int(value) or not allowed[0] <= value <= allowed[1]:
        raise ValueError(f"the {what} is {value!r}; it must be a whole number from {allowed[0]} to {allowed[1]}.")
    return int(value)


def _number(value: Any, what: str, allowed: tuple[float, float]) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not allowed[0] <= value <= allowed[1]:
        raise ValueError(f"the {what} is {value!r}; it must be a number from {allowed[0]:g} to {allowed[1]:g}.")
    return float(value)


def _side(value: Any, settings: Settings) -> int | None:
    if value is None:
        return None
    if settings.is_embedded:
        raise ValueError("the embedded pipeline draws 48 x 48 pixels only; leave the size out.")
    if isinstance(value, bool) or value not in SIDES:
        raise ValueError(f"the size is {value!r}; it must be one of {', '.join(map(str, SIDES))}.")
    return int(value)


def _encoders(value: Any, settings: Settings) -> tuple[str, ...]:
    names = settings.chosen if value is None else value
    if not isinstance(names, Sequence) or isinstance(names, str) or not names:
        raise ValueError(f"no encoder is chosen; choose from {', '.join(settings.encoders)}.")
    for name in names:
        if not isinstance(name, str) or name not in settings.encoders:
            raise ValueError(f"unknown encoder {str(name)[:40]!r}; choose from {', '.join(settings.encoders)}.")
    return tuple(name for name in settings.encoders if name in names)
