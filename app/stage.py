"""The panels as HTML: one an encoder, with its pictures, its progress, its scores and its verdict on every sentence.

Every text that a person or a model wrote is escaped.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.frames import LETTERS, empty_frame_html, frame_html, looks_html
from app.previews import data_url
from app.run import Picture, Run, Track
from app.scores import interval_of, mean_of
from app.verdict_rows import verdicts_html
from debias_sd.comparison import NO_JUDGE, Sentence
from debias_sd.counts import count_of
from debias_sd.measure.judges.verdict import DRAWN


def empty_html(title: str, window: int) -> str:
    """A panel before the first run."""
    return _panel(title, _window_note(window), empty_frame_html("Its picture appears here."), state="empty")


def panel_html(run: Run, track: Track) -> str:
    """The panel of one encoder in whatever state it is."""
    body = _pictures_html(run, track) + _progress_html(run, track)
    if track.fault:
        body += f'<p class="fault" role="alert">{escape(_capital(track.fault))}</p>'
    if track.pictures:
        body += _score_html(run, track) + verdicts_html(run.sentences, track.pictures)
    return _panel(track.title, _window_note(track.window), body, state=track.state)


def _window_note(window: int) -> str:
    return f"window of {window} tokens"


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
        picture.image, f"Drawn with {track.title}, seed {picture.seed}", looks=looks_html(picture, sentences)
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


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} %"


def _with_interval(values: Sequence[float | None]) -> str:
    """The mean, and its interval over seeds; equal values have no spread to tell one by."""
    interval = interval_of(values)
    if interval is None:
        between = ""
    elif interval[0] == interval[1]:
        between = " <small>(all alike)</small>"
    else:
        between = f" <small>({interval[0]:.0f} to {interval[1]:.0f})</small>"
    return f"<b>{_percent(mean_of(values))}</b>{between}"


def _score_html(run: Run, track: Track) -> str:
    """Share drawn and late details, with an interval over seeds; the quarters as four bars; the time."""
    scores = [picture.score for picture in track.pictures]
    seconds = sum(picture.seconds for picture in track.pictures)
    time = f'<span class="time">{seconds:.1f} s</span>'
    if all(score.drawn is None for score in scores):
        words = _unjudged(run, track)
        return f'<div class="scores"><p class="hint">{words}</p>{time}</div>'
    quarters = [mean_of([score.quarters[index] for score in scores]) for index in range(4)]
    told = ", ".join(f"quarter {index + 1}: {_percent(value)}" for index, value in enumerate(quarters))
    bars = "".join(
        f'<span class="{"none" if value is None else ""}"><i style="height:{value or 0:.0f}%"></i>'
        f"<em>{'–' if value is None else f'{value:.0f}'}</em></span>"
        for value in quarters
    )
    return (
        f'<div class="scores"><p>drawn {_with_interval([s.drawn for s in scores])}</p>'
        f"<p>late details {_with_interval([s.late for s in scores])}</p>{time}"
        f'<div class="quarters" role="img" aria-label="Details drawn by quarter of the prompt: {told}">{bars}</div>'
        '<small class="by" aria-hidden="true">by quarter of the prompt</small></div>'
    )


def _unjudged(run: Run, track: Track) -> str:
    """Why a panel has no share drawn."""
    verdicts = [verdict for picture in track.pictures for verdict in picture.verdicts]
    score = mean_of([verdict.score for verdict in verdicts])
    if score is not None and run.judge is not None:
        return (
            f"Mean score <b>{score:.2f}</b>. By its thresholds this judge is never sure enough to say <i>drawn</i>: "
            "read its scores alone."
        )
    reasons = {verdict.reason for verdict in verdicts}
    if reasons == {NO_JUDGE}:
        return "Not judged: the pictures are real, and the app runs without <code>--judge</code>."
    if len(reasons) == 1:
        return escape(f"Not judged: {reasons.pop()}")
    return "None of these sentences can be judged."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
