"""The panels as HTML: one per encoder, with its pictures, its progress and its verdicts; the row of small pictures.

Every text that a person or a model wrote is escaped. Highlighting is the page's script: elements that share
`data-sentence` light up together.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from app.live_run import Picture, Run, Track
from app.previews import data_url, thumb
from app.verdict_rows import mean_of, scores_html, verdicts_html
from debias_sd.comparison import Sentence
from debias_sd.measure.judges import DRAWN
from debias_sd.shapes.render import CELL, SIDE
from debias_sd.text import count_of

LETTERS = "ABCDEF"
_WITH_WORDS = 3  # small pictures in a row that have room for a word below them


def frame_html(image: np.ndarray, alt: str, *, highlights: str = "") -> str:
    """A finished picture; the embedded world's few pixels stay sharp."""
    pixelated = "pixelated" if image.shape[0] <= 64 else ""
    return f'<div class="frame"><img class="{pixelated}" src="{data_url(image)}" alt="{escape(alt)}">{highlights}</div>'


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


def strip_html(run: Run) -> str:
    """The first pictures in one small row, for screens on which the panels do not fit side by side; they say it all.

    It has its full height from the start, so that nothing moves when a picture comes.
    """
    return _strip([_strip_item(run, track) for track in run.tracks])


def blind_strip_html(pictures: Sequence[Picture | None]) -> str:
    """The same row for a round of a blind vote: letters for names."""
    return _strip(
        [
            empty_frame_html("") + LETTERS[place]
            if picture is None
            else frame_html(thumb(picture.image), "") + LETTERS[place]
            for place, picture in enumerate(pictures)
        ]
    )


def _strip_item(run: Run, track: Track) -> str:
    if not track.pictures:
        return f"{empty_frame_html('')}{_name(track.title)}{track.state}"
    first = track.pictures[0]
    share = mean_of([picture.score.drawn for picture in track.pictures])
    words = " drawn" if len(run.tracks) <= _WITH_WORDS else ""
    told = "not judged" if share is None else f"{share:.0f} %{words}"
    frame = frame_html(thumb(first.image), "", highlights=highlights_html(first, run.sentences))
    return f"{frame}{_name(track.title)}{told}"


def _name(title: str) -> str:
    return f'<span class="name">{escape(title)}</span>'


def _strip(items: Sequence[str]) -> str:
    return f'<ul class="strip" aria-hidden="true">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def empty_html(title: str, window: int | None) -> str:
    """A panel before the first run."""
    return _panel(title, _window_note(window), empty_frame_html("Its picture appears here."), state="empty")


def panel_html(run: Run, track: Track) -> str:
    """The panel of one encoder in whatever state it is."""
    body = _pictures_html(run, track) + _progress_html(run, track)
    if track.fault:
        body += f'<p class="fault" role="alert">{escape(_capital(track.fault))}</p>'
    if track.pictures:
        body += scores_html(run, track) + verdicts_html(run.sentences, track.pictures)
    return _panel(track.title, _window_note(track.window), body, state=track.state)


def _window_note(window: int | None) -> str:
    return "reads every sentence" if window is None else f"window of {window} tokens"


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


def status_of(run: Run | None) -> str:
    """One line that says where a run is; it is read out."""
    if run is None:
        return ""
    if run.before is not None:
        return f"{run.before} before you"
    if not run.is_over:
        drawing = next((track for track in run.tracks if track.state == "drawing"), None)
        return f"Drawing with {drawing.title}" if drawing else "Drawing"
    if any(track.state == "stopped" for track in run.tracks):
        return "Stopped"
    failed = [track.title for track in run.tracks if track.state == "failed"]
    seconds = sum(picture.seconds for track in run.tracks for picture in track.pictures)
    return f"Done in {seconds:.1f} s" + (f"; {', '.join(failed)} failed" if failed else "")


def status_html(words: str, *, blind: bool = False, prompt: str | None = None) -> str:
    """The status line; of pictures that are there it knows their `prompt`, and says when the box holds another one."""
    about = "" if prompt is None else f' data-prompt="{escape(prompt)}"'
    return (
        f'<div class="status{" blind" if blind else ""}" role="status" aria-live="polite"{about}>{escape(words)}'
        '<span class="stale" hidden>; the prompt has changed since</span></div>'
    )


def _panel(title: str, note: str, body: str, *, state: str) -> str:
    return (
        f'<section class="panel {state}" aria-label="{escape(title)}"><header><h2>{escape(title)}</h2>'
        f'<span class="count">{escape(note)}</span></header>{body}</section>'
    )


def _pictures_html(run: Run, track: Track) -> str:
    """The finished pictures, the one being drawn, and places for those to come: nothing moves when one comes."""
    figures = [_figure(picture, track, run.sentences) for picture in track.pictures]
    missing = range(len(track.pictures), track.wanted) if track.state in ("drawing", "waiting") else ()
    for number in missing:
        is_next = number == len(track.pictures) and track.state == "drawing"
        if is_next and track.preview is not None:
            alt = "Preview of the picture being drawn"
            inner = f'<div class="frame"><img class="preview" src="{data_url(track.preview)}" alt="{alt}"></div>'
        else:
            inner = empty_frame_html("drawing" if is_next else "waiting")
        seed = f"<span>seed {run.request.seed + number}</span>"
        figures.append(f"<figure>{inner}<figcaption>{seed}</figcaption></figure>")
    if not figures:
        words = "stopped" if track.state == "stopped" else "no picture"
        figures.append(f"<figure>{empty_frame_html(words)}</figure>")
    many = f' many" style="--columns:{_columns(track.wanted)}' if track.wanted > 1 else ""
    return f'<div class="pictures{many}">{"".join(figures)}</div>'


def _columns(pictures: int) -> int:
    """How many pictures stand side by side in a panel, so that the rows are even.

    >>> [_columns(pictures) for pictures in range(2, 9)]
    [2, 3, 2, 3, 3, 4, 4]
    """
    return {2: 2, 4: 2, 7: 4, 8: 4}.get(pictures, 3)


def _figure(picture: Picture, track: Track, sentences: Sequence[Sentence]) -> str:
    frame = frame_html(
        picture.image, f"Drawn with {track.title}, seed {picture.seed}", highlights=highlights_html(picture, sentences)
    )
    told = ""
    if picture.score.drawn is not None:
        drawn = sum(verdict.mark == DRAWN for verdict in picture.verdicts)
        judged = sum(verdict.is_judged for verdict in picture.verdicts)
        of = f"{count_of(judged, 'sentence')} drawn" if track.wanted == 1 else str(judged)
        told = f" <span>{drawn} of {of}</span>"
    return f"<figure>{frame}<figcaption><span>seed {picture.seed}</span>{told}</figcaption></figure>"


def _progress_html(run: Run, track: Track) -> str:
    """How far the encoder is; one that is not drawing has the place of it until the run is over."""
    if run.is_over or track.state == "failed" or (track.state == "done" and track.wanted == 1):
        return ""
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
