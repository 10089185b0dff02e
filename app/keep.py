"""What a person takes along: a PNG with its settings inside, one HTML page, the settings, the command line.

Nothing is written to the server's disk: downloads are data addresses of the page itself, and their names are made of
the seed alone.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from html import escape
from importlib import metadata
from typing import Any

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from app.live_run import Run
from app.look import PALETTE, read_asset, style_sheet
from app.previews import data_url, thumb
from app.settings import Settings
from app.stage import panel_html
from app.verdict_rows import mean_of
from debias_sd.comparison import Comparison, Panel
from debias_sd.lettering import Lettering
from debias_sd.panels import draw_panels

_VERSIONS = ("debias-sd", "torch", "diffusers", "transformers")
_CELL, _GAP, _HEAD = 288, 12, 40  # of the grid of several seeds, in pixels


def comparison_of(run: Run, number: int = 0) -> Comparison:
    """Seed `number` of a run as the command line has it; encoders without that picture are left out."""
    drawn = [(track, track.pictures[number]) for track in run.tracks if number < len(track.pictures)]
    panels = tuple(Panel(track.name, track.window, picture.image, picture.verdicts) for track, picture in drawn)
    return Comparison(run.request.prompt, run.request.seed + number, run.sentences, panels)


def settings_of(run: Run) -> dict[str, Any]:
    """The request and the versions that drew it."""
    versions = {name: metadata.version(name) for name in _VERSIONS}
    return {"settings": run.request.as_dict(), "versions": versions} | ({"judge": run.judge} if run.judge else {})


def png_of(run: Run) -> bytes:
    """The comparison as a PNG; its settings and marks are in the text chunk `debias_sd`, as JSON."""
    info = PngInfo()
    content = settings_of(run) | {"result": comparison_of(run).as_json()}
    info.add_itxt("debias_sd", json.dumps(content, ensure_ascii=False))
    info.add_itxt("Description", run.request.prompt)
    stream = io.BytesIO()
    image = draw_panels(comparison_of(run)) if run.request.seeds == 1 else _grid(run)
    image.save(stream, format="PNG", pnginfo=info, optimize=True)
    return stream.getvalue()


def _grid(run: Run) -> Image.Image:
    """One row per seed, one column per encoder."""
    tracks = [track for track in run.tracks if track.pictures]
    size = (_GAP + len(tracks) * (_CELL + _GAP), _HEAD + run.request.seeds * (_CELL + _GAP))
    canvas = Image.new("RGB", size, PALETTE["paper"][0])
    pen = ImageDraw.Draw(canvas)
    for column, track in enumerate(tracks):
        left = _GAP + column * (_CELL + _GAP)
        Lettering(20).draw(pen, (left, 8), track.title, PALETTE["ink"][0])
        for picture in track.pictures:
            how = Image.Resampling.NEAREST if picture.image.shape[0] <= 64 else Image.Resampling.LANCZOS
            cell = Image.fromarray(picture.image).resize((_CELL, _CELL), how)
            canvas.paste(cell, (left, _HEAD + (picture.seed - run.request.seed) * (_CELL + _GAP)))
    return canvas


def page_of(run: Run, settings: Settings) -> str:
    """The comparison as one HTML page that needs nothing else, highlighting included."""
    panels = "".join(panel_html(run, track) for track in run.tracks)
    content = escape(json.dumps(settings_of(run), indent=2, ensure_ascii=False))
    again = escape(run.request.as_command(settings, shared=True))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>One prompt, several text encoders</title>'
        '<meta name="viewport" content="width=device-width"><style>body{margin:0;font-family:system-ui,sans-serif;'
        "background:Canvas}.gradio-container{padding:16px}pre{white-space:pre-wrap;overflow-wrap:anywhere}"
        f'{style_sheet()}</style></head><body><main class="gradio-container"><h1>One prompt, several text '
        f'encoders</h1><p dir="auto">{escape(run.request.prompt)}</p><div class="panels">{panels}</div>'
        f"<h2>Settings</h2><pre>{content}</pre><h2>Again</h2><pre>{again}</pre></main>"
        f"<script>{read_asset('highlight.js')}</script></body></html>"
    )


def downloads_html(run: Run | None, settings: Settings) -> str:
    """Links that download the PNG, the page and the settings."""
    if run is None:
        return '<p class="hint">Comparisons of this session appear here, to download and to repeat.</p>'
    name = f"comparison-seed-{run.request.seed}"
    page, plain = page_of(run, settings), run.request.as_json()
    links = (
        ("PNG", f"{name}.png", "image/png", png_of(run)),
        ("HTML page", f"{name}.html", "text/html", page.encode()),
        ("Settings (JSON)", f"{name}.json", "application/json", plain.encode()),
    )
    anchors = "".join(
        f'<a download="{file}" href="data:{kind};base64,{base64.b64encode(content).decode("ascii")}">{words}</a>'
        for words, file, kind, content in links
    )
    return f'<div class="downloads">{anchors}</div>'


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
