"""The panels as HTML: one per encoder, with its pictures and its progress.

Every text that a person or a model wrote is escaped. Highlighting is the page's script: elements that share
`data-sentence` light up together. A click on a picture opens two of them in one place (closer.js).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from app.live_run import Picture, Run, Track
from app.look import data_url
from app.result import counts_of, pictures_before
from debias_sd.comparison import Sentence
from debias_sd.shapes.render import CELL, SIDE

LETTERS = "ABCDEF"


def frame_html(image: np.ndarray, alt: str, *, highlights: str = "", closer: str = "") -> str:
    """A finished picture; the embedded world's few pixels stay sharp. `closer`: attributes of one that opens."""
    pixelated = "pixelated" if image.shape[0] <= 64 else ""
    inner = f'<img class="{pixelated}" src="{data_url(image)}" alt="{escape(alt)}">{highlights}'
    if closer:
        return f'<button type="button" class="frame" {closer}>{inner}</button>'
    return f'<div class="frame">{inner}</div>'


def empty_frame_html(words: str) -> str:
    """The place of a picture that is not there."""
    return f'<div class="frame empty"><p>{escape(words)}</p></div>'


def boxes_of(sentence: Sentence) -> list[tuple[float, float, float, float]]:
    """Where the checker looked, in percent of the picture: left, top, width, height of each thing's cell."""
    side = 100 * CELL / SIDE
    return [(side * (t.cell % 3), side * (t.cell // 3), side, side) for t in dict.fromkeys(sentence.things)]


def highlights_html(picture: Picture, sentences: Sequence[Sentence]) -> str:
    """Boxes (the checker's cells) or maps (a real UNet's attention), each with its sentence's number."""
    boxes = "".join(
        f'<span class="box" data-sentence="{index}" '
        f'style="left:{left:.2f}%;top:{top:.2f}%;width:{width:.2f}%;height:{height:.2f}%"></span>'
        for index, sentence in enumerate(sentences)
        for left, top, width, height in boxes_of(sentence)
    )
    return boxes + "".join(
        f'<img class="map" data-sentence="{index}" src="{look}" alt="">'
        for index, look in enumerate(picture.maps)
        if look is not None
    )


def empty_html(title: str, window: int | None) -> str:
    """A panel before the first run."""
    return _panel(title, _window_note(window), empty_frame_html("Its picture appears here."), state="empty")


def panel_html(run: Run, track: Track) -> str:
    """The panel of one encoder in whatever state it is."""
    body = _pictures_html(run, track) + _progress_html(run, track)
    if track.fault:
        body += f'<p class="fault" role="alert">{escape(_capital(track.fault))}</p>'
    return _panel(track.title, _window_note(track.window), body, state=track.state, name=track.name)


def _window_note(window: int | None) -> str:
    return "reads every sentence" if window is None else f"reads {window} tokens"


def blind_progress_html(track: Track, place: int) -> str:
    """A panel of a blind run while it draws: no name, no preview, no time that would tell them apart."""
    done = len(track.pictures) == track.wanted or track.state == "failed"
    words = "ready" if done else "drawing"
    return _panel(f"Picture {LETTERS[place]}", "", empty_frame_html(words), state=track.state)


def blind_panel_html(picture: Picture | None, place: int) -> str:
    """One picture of a blind round; None is an encoder that failed."""
    letter = LETTERS[place]
    if picture is None:
        body = empty_frame_html("no picture: it failed")
    else:
        body = frame_html(picture.image, f"Picture {letter} of this round")
    return _panel(f"Picture {letter}", "", body, state="done")


def votes_html(pictures: int, number: int) -> str:
    """The buttons of the blind round of this number: a vote is for the round whose buttons are clicked."""
    choices = [(str(place), place, f"{LETTERS[place]} is best") for place in range(pictures)]
    return "".join(
        f'<button type="button" id="vote-{end}" data-place="{place}" data-round="{number}">{words}</button>'
        for end, place, words in [*choices, ("none", -1, "No difference")]
    )


def _panel(title: str, note: str, body: str, *, state: str, name: str = "") -> str:
    named = f' data-name="{escape(name)}"' if name else ""
    return (
        f'<section class="panel {state}" aria-label="{escape(title)}"{named}><header><h2>{escape(title)}</h2>'
        f'<span class="count">{escape(note)}</span></header>{body}</section>'
    )


def _pictures_html(run: Run, track: Track) -> str:
    """The finished pictures, the one being drawn, and places for those to come: nothing moves when one comes.

    Of a prompt whose sentences were moved each is beside the one of the prompt before.
    """
    before = {picture.seed: picture for picture in pictures_before(run, track)}
    figures = []
    for number in range(track.wanted):
        seed = run.request.seed + number
        if seed in before:
            figures.append(_figure(before[seed], track, run.earlier, when="before"))
        picture = next((picture for picture in track.pictures if picture.seed == seed), None)
        if picture is not None:
            figures.append(_figure(picture, track, run, when="after" if before else ""))
        elif track.state in ("drawing", "waiting"):
            is_next = number == len(track.pictures) and track.state == "drawing"
            when = "after" if before else f"seed {seed}" if track.wanted > 1 else ""
            figures.append(_coming(track, when, is_next=is_next))
    if not figures:
        words = "stopped" if track.state == "stopped" else "no picture"
        figures.append(f"<figure>{empty_frame_html(words)}</figure>")
    columns = 2 if before else _columns(track.wanted)
    many = f' many" style="--columns:{columns}' if track.wanted > 1 or before else ""
    return f'<div class="pictures{many}">{"".join(figures)}</div>'


def _columns(pictures: int) -> int:
    """How many pictures stand side by side in a panel, so that the rows are even.

    >>> [_columns(pictures) for pictures in range(2, 9)]
    [2, 3, 2, 3, 3, 4, 4]
    """
    return {2: 2, 4: 2, 7: 4, 8: 4}.get(pictures, 3)


def _coming(track: Track, when: str, *, is_next: bool) -> str:
    """The place of a picture that will come; its caption has the room of the one that will be there."""
    if is_next and track.preview is not None:
        alt = "Preview of the picture being drawn"
        inner = f'<div class="frame"><img class="preview" src="{data_url(track.preview)}" alt="{alt}"></div>'
    else:
        inner = empty_frame_html("drawing" if is_next else "waiting")
    room = '<span class="holds" aria-hidden="true">: 0 of 9</span>' if when else ""
    return f"<figure>{inner}<figcaption>{when}{room}</figcaption></figure>"


def _figure(picture: Picture, track: Track, run: Run, *, when: str) -> str:
    of = f"{track.title}{', ' + when if when else ''}, seed {picture.seed}"
    closer = f'data-title="{escape(of)}" title="Look closer, and flip with another one"'
    frame = frame_html(
        picture.image, f"Drawn with {of}", highlights=highlights_html(picture, run.sentences), closer=closer
    )
    words = [when or (f"seed {picture.seed}" if track.wanted > 1 else "")]
    if picture.score.drawn is not None:
        drawn, judged = counts_of(picture)
        noun = "" if any(words) else f' <span class="word">{"sentence" if judged == 1 else "sentences"}</span>'
        words.append(f"{drawn} of {judged}{noun}")
    return f"<figure>{frame}<figcaption>{': '.join(filter(None, words))}</figcaption></figure>"


def _progress_html(run: Run, track: Track) -> str:
    """How far the encoder is; one that is not drawing has the place of it until the run is over."""
    if run.is_over or track.state == "failed" or (track.state == "done" and track.wanted == 1):
        return '<div class="progress"></div>'
    if track.state != "drawing":
        return f'<div class="progress"><div></div><span>{track.state}</span></div>'
    if track.is_judged:
        return '<div class="progress"><div></div><span>drawn; the judge is looking</span></div>'
    left = "" if track.left is None else f" · {track.left:.0f} s left"
    picture = f"picture {len(track.pictures) + 1} of {track.wanted} · " if track.wanted > 1 else ""
    width = f"width:{100 * track.step / track.steps:.0f}%"
    return (
        f'<div class="progress"><div role="progressbar" aria-label="{escape(track.title)}" aria-valuemin="0" '
        f'aria-valuemax="{track.steps}" aria-valuenow="{track.step}"><i style="{width}">'
        f"</i></div><span>{picture}step {track.step} of {track.steps}{left}</span></div>"
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
