"""What is kept of one open page, and what a person takes along of it.

The server remembers a page's runs, its blind ballot and its votes, also for its next reload. In a blind run the
order of the pictures is hidden, the person votes round by round, then the names are shown. Taken along are a PNG with
its settings inside, one HTML page, a link and the command line. Nothing is written to the server's disk: downloads are
data addresses of the page itself, and their names are made of the seed alone.
"""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import random
import re
from collections import Counter, OrderedDict
from collections.abc import Sequence
from html import escape, unescape
from importlib import metadata
from typing import Any

from PIL.PngImagePlugin import PngInfo

from app.live_run import Run
from app.look import data_url, read_asset, style_sheet, thumb
from app.models import Models
from app.request import Request, Settings
from app.result import mean_of, result_of, scores_html
from app.stage import panel_html
from app.table import run_table
from debias_sd import __version__
from debias_sd.comparison import Comparison, Panel
from debias_sd.panels import draw_card
from debias_sd.text import count_of

KEPT = 24  # comparisons in the gallery; older ones go
KEPT_BYTES = 100_000_000  # of their pictures: 33 of 1024 x 1024 pixels
SESSIONS, SESSIONS_BYTES = 100, 400_000_000  # that a reload can bring back, all together
_KEY = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_VERSIONS = ("torch", "diffusers", "transformers")


@dataclasses.dataclass
class Ballot:
    """The rounds of one blind run: in each the encoders' names in the order in which their pictures are shown."""

    orders: tuple[tuple[str, ...], ...]
    votes: list[str | None] = dataclasses.field(default_factory=list)
    """The chosen encoder of each finished round; None where the person saw no difference."""

    @classmethod
    def shuffled(cls, names: Sequence[str], rounds: int, rng: random.Random) -> Ballot:
        """A ballot whose orders are drawn independently."""
        return cls(tuple(tuple(rng.sample(list(names), len(names))) for _ in range(rounds)))

    @property
    def round(self) -> int:
        """The number of the round at hand, from 0; the number of rounds when all are done."""
        return len(self.votes)

    @property
    def is_over(self) -> bool:
        return self.round == len(self.orders)

    def vote(self, place: int | None) -> None:
        """Choose the picture at `place` of the round at hand, or none. ValueError when there is no such picture."""
        if self.is_over:
            raise ValueError("all rounds are voted on; start another comparison.")
        order = self.orders[self.round]
        if place is not None and not 0 <= place < len(order):
            raise ValueError(f"picture {place + 1} was chosen, this round has {len(order)}; choose one of them.")
        self.votes.append(None if place is None else order[place])


@dataclasses.dataclass
class Tally:
    """Votes of a session: for each encoder how often it was shown in a voted round, and how often chosen."""

    shown: Counter[str] = dataclasses.field(default_factory=Counter)
    chosen: Counter[str] = dataclasses.field(default_factory=Counter)
    rounds: int = 0

    def add(self, order: Sequence[str], choice: str | None) -> None:
        """Count one round."""
        self.rounds += 1
        self.shown.update(order)
        if choice is not None:
            self.chosen[choice] += 1


def tally_html(tally: Tally, titles: dict[str, str]) -> str:
    """The tally as a table, with what chance alone would give each encoder."""
    if not tally.rounds:
        return ""
    rows = []
    for name, title in titles.items():
        shown, chosen = tally.shown[name], tally.chosen[name]
        if not shown:
            continue
        rows.append(
            f"<tr><th scope=row>{escape(title)}</th><td>{chosen} of {shown}</td><td>{100 * chosen / shown:.0f} %</td>"
            "</tr>"
        )
    none = tally.rounds - sum(tally.chosen.values())
    return (
        '<table class="tally"><caption>Your votes of this session</caption><thead><tr><th>encoder</th><th>chosen</th>'
        f"<th>share</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
        f'<p class="hint">{count_of(tally.rounds, "round")}, {none} without a difference. Chance alone gives each '
        f"{100 / max(1, len(rows)):.0f} %.</p>"
    )


class Session:
    """Mutable on purpose: gradio keeps one per page and hands the same one to every event.

    No dataclass: gradio would write those out as part of the page.
    """

    def __init__(self) -> None:
        self.run: Run | None = None
        self.ballot: Ballot | None = None
        self.tally = Tally()
        self.kept: list[Run] = []
        self.chosen = -1

    @property
    def is_blind(self) -> bool:
        """Whether the run at hand must not show names yet."""
        return self.ballot is not None and not self.ballot.is_over

    @property
    def is_busy(self) -> bool:
        """Whether a run is under way."""
        return self.run is not None and not self.run.is_over

    def shows(self, request: Request) -> bool:
        """Whether the page shows the finished pictures of this request."""
        return self.run is not None and self.run.is_over and not self.is_blind and self.run.request == request

    def keep(self, run: Run) -> None:
        """Put a finished run into the gallery, newest first."""
        if any(track.pictures for track in run.tracks):
            self.kept.insert(0, run)
            del self.kept[KEPT:]
            while len(self.kept) > 1 and sum(map(_bytes_of, self.kept)) > KEPT_BYTES:
                del self.kept[-1]
            self.chosen = 0

    def cancel(self) -> None:
        """Stop the run at hand after its current step."""
        if self.run is not None:
            self.run.stop.set()


def _bytes_of(run: Run) -> int:
    return sum(picture.image.nbytes for track in run.tracks for picture in track.pictures)


class Sessions:
    """Those of pages that may be reloaded, by a key that only their browser tab knows; the oldest go past a bound."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Session] = OrderedDict()

    def resume(self, key: str, fresh: Session) -> Session:
        """The session of a page that is back, or `fresh`, which is then known by `key`; a key is a random UUID."""
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            return fresh
        session = self._known.setdefault(key, fresh)
        self._known.move_to_end(key)
        while len(self._known) > 1 and (len(self._known) > SESSIONS or self._bytes() > SESSIONS_BYTES):
            self._known.popitem(last=False)
        return session

    def _bytes(self) -> int:
        return sum(_bytes_of(run) for session in self._known.values() for run in session.kept)


def comparison_of(run: Run, number: int = 0) -> Comparison:
    """Seed `number` of a run as the command line has it; encoders without that picture are left out."""
    drawn = [(track, track.pictures[number]) for track in run.tracks if number < len(track.pictures)]
    panels = tuple(Panel(track.name, track.window, picture.image, picture.verdicts) for track, picture in drawn)
    return Comparison(run.request.prompt, run.request.seed + number, run.sentences, panels)


def settings_of(run: Run) -> dict[str, Any]:
    """The request and the versions that drew it."""
    versions = {"debias-sd": __version__} | {name: metadata.version(name) for name in _VERSIONS}
    return {"settings": run.request.as_dict(), "versions": versions} | ({"judge": run.judge} if run.judge else {})


def png_of(run: Run) -> bytes:
    """The comparison as a PNG; its settings and marks are in the text chunk `debias_sd`, as JSON."""
    info = PngInfo()
    comparisons = [comparison_of(run, number) for number in range(run.request.seeds)]
    comparisons = [comparison for comparison in comparisons if len(comparison.panels) == len(comparisons[0].panels)]
    content = settings_of(run) | {"result": comparisons[0].as_json()}
    if len(comparisons) > 1:
        content["results"] = [comparison.as_json() for comparison in comparisons]
    info.add_itxt("debias_sd", json.dumps(content, ensure_ascii=False))
    info.add_itxt("Description", run.request.prompt)
    stream = io.BytesIO()
    draw_card(comparisons, result=_plain(result_of(run))).save(stream, format="PNG", pnginfo=info, optimize=True)
    return stream.getvalue()


def _plain(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


def page_of(run: Run, models: Models, settings: Settings) -> str:
    """The comparison as one HTML page that needs nothing else, highlighting and flipping included."""
    panels = "".join(panel_html(run, track) for track in run.tracks)
    content = escape(json.dumps(settings_of(run), indent=2, ensure_ascii=False))
    again = escape(run.request.as_command(settings, shared=True))
    scripts = "".join(f"<script>{read_asset(name)}</script>" for name in ("highlight.js", "closer.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>One prompt, several text encoders</title>'
        '<meta name="viewport" content="width=device-width"><style>body{margin:0;font-family:system-ui,sans-serif;'
        "background:Canvas}.gradio-container{padding:16px}pre{white-space:pre-wrap;overflow-wrap:anywhere}"
        f'.acts{{display:none}}{style_sheet()}</style></head><body><main class="gradio-container alone" id="stage">'
        f'<h1>One prompt, several text encoders</h1><p class="result">{result_of(run)}</p>'
        f'<div id="top"><div id="ask"></div><div class="panels" id="panels">{panels}</div></div>'
        f"{run_table(run, models)}<h2>Scores</h2>{scores_html(run)}<h2>Settings</h2><pre>{content}</pre>"
        f"<h2>Again</h2><pre>{again}</pre></main>{scripts}</body></html>"
    )


def share_html(run: Run | None, models: Models, settings: Settings) -> str:
    """Links that download the picture and the page, a button that copies the link, the command line."""
    if run is None:
        return ""
    name = f"comparison-seed-{run.request.seed}"
    links = (
        ("Save as picture", f"{name}.png", "image/png", png_of(run)),
        ("Save as page", f"{name}.html", "text/html", page_of(run, models, settings).encode()),
    )
    anchors = "".join(
        f'<a download="{file}" href="data:{kind};base64,{base64.b64encode(content).decode("ascii")}">{words}</a>'
        for words, file, kind, content in links
    )
    query = run.request.as_query()
    link = (
        f'<button type="button" data-query="{escape(query)}">Copy link</button>'
        if query
        else '<span class="hint">too long for a link</span>'
    )
    command = escape(run.request.as_command(settings))
    return (
        f'<div class="share"><span>Share</span>{anchors}{link}<details><summary>Command line</summary>'
        f'<pre id="command" tabindex="0">{command}</pre></details></div>'
    )


def gallery_html(kept: Sequence[Run], chosen: int) -> str:
    """The session's comparisons, newest first, as buttons."""
    items = []
    for index, run in enumerate(kept):
        thumbs = "".join(
            f'<img src="{data_url(thumb(track.pictures[0].image))}" alt="{escape(track.title)}">'
            for track in run.tracks
            if track.pictures
        )
        shares = [(track.title, mean_of([p.score.drawn for p in track.pictures])) for track in run.tracks]
        numbers = [f"{title} {share:.0f} %" for title, share in shares if share is not None]
        seeds = f"seed {run.request.seed}" + (f", {run.request.seeds} seeds" if run.request.seeds > 1 else "")
        items.append(
            f'<li><button type="button" data-pick="{index}" aria-pressed="{"true" if index == chosen else "false"}">'
            f'<span class="thumbs">{thumbs}</span>'
            f'<span class="words" dir="auto">{escape(run.request.prompt[:200])}</span>'
            f'<span class="numbers">{" ".join(f"<span>{escape(words)}</span>" for words in (seeds, *numbers))}</span>'
            "</button></li>"
        )
    return f'<ul class="gallery" aria-label="Comparisons of this session">{"".join(items)}</ul>' if items else ""
