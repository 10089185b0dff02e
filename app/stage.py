"""The panels as HTML: one an encoder, with its pictures, its verdict on every sentence, and where the checker looked.

Every text that a person or a model wrote is escaped. Highlighting is the page's script: elements that share
`data-sentence` light up together.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from app.previews import data_url, thumb
from app.run import Picture, Run, Track
from app.scores import boxes_of, interval_of, mean_of
from debias_sd.comparison import Sentence

_SIGNS = {"drawn": "✓", "missing": "✕", "unsure": "?", "not read": "–", "not judged": "·"}
_LETTERS = "ABCDEF"


def empty_html(title: str, window: int) -> str:
    """A panel before the first run."""
    body = '<div class="frame empty"><p>Its picture appears here.</p></div>'
    return _panel(title, f"reads {window} tokens", body, state="empty")


def panel_html(run: Run, track: Track) -> str:
    """The panel of one encoder in whatever state it is."""
    body = _pictures_html(run, track) + _progress_html(track)
    if track.fault:
        body += f'<p class="fault" role="alert">{escape(_capital(track.fault))}</p>'
    if track.pictures:
        body += _score_html(track) + _verdicts_html(run.sentences, track.pictures)
    return _panel(track.title, f"reads {track.window} tokens", body, state=track.state)


def blind_progress_html(track: Track, place: int) -> str:
    """A panel of a blind run while it draws: no name, no preview, no time that would tell them apart."""
    done = len(track.pictures) == track.wanted or track.state == "failed"
    words = "ready" if done else "drawing"
    return _panel(f"Picture {_LETTERS[place]}", "", f'<div class="frame empty"><p>{words}</p></div>', state=track.state)


def blind_panel_html(picture: Picture | None, place: int) -> str:
    """One picture of a blind round; None is an encoder that failed."""
    letter = _LETTERS[place]
    if picture is None:
        body = '<div class="frame empty"><p>no picture: it failed</p></div>'
    else:
        image = (
            f'<img class="{_pixelated(picture)}" src="{data_url(picture.image)}" alt="Picture {letter} of this round">'
        )
        body = f'<div class="frame">{image}</div>'
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


def strip_html(run: Run) -> str:
    """All pictures in one small row, for screens on which the panels do not fit side by side; the panels say it all."""
    items = []
    for track in run.tracks:
        picture = track.pictures[0] if track.pictures else None
        image = (
            ""
            if picture is None
            else f'<img class="{_pixelated(picture)}" src="{data_url(thumb(picture.image))}" alt="">'
        )
        share = mean_of([p.score.drawn for p in track.pictures])
        told = "" if share is None else f"<br>{share:.0f} % drawn"
        items.append(f"<li><span class=frame>{image}</span>{escape(track.title)}{told}</li>")
    return f'<ul class="strip" aria-hidden="true">{"".join(items)}</ul>' if any(t.pictures for t in run.tracks) else ""


def _panel(title: str, note: str, body: str, *, state: str) -> str:
    return (
        f'<section class="panel {state}" aria-label="{escape(title)}"><header><h2>{escape(title)}</h2>'
        f'<span class="count">{escape(note)}</span></header>{body}</section>'
    )


def _pictures_html(run: Run, track: Track) -> str:
    figures = [_figure(picture, track, run.sentences) for picture in track.pictures]
    if track.state in ("drawing", "waiting") and len(track.pictures) < track.wanted:
        if track.preview is not None:
            inner = f'<img class="preview" src="{data_url(track.preview)}" alt="Preview of the picture being drawn">'
        else:
            inner = "<p>waiting</p>" if track.state == "waiting" else "<p>drawing</p>"
        figures.append(
            f'<figure><div class="frame{"" if track.preview is not None else " empty"}">{inner}</div></figure>'
        )
    if not figures:
        words = "stopped" if track.state == "stopped" else "no picture"
        figures.append(f'<figure><div class="frame empty"><p>{words}</p></div></figure>')
    return f'<div class="pictures{" many" if track.wanted > 1 else ""}">{"".join(figures)}</div>'


def _figure(picture: Picture, track: Track, sentences: Sequence[Sentence]) -> str:
    boxes = "".join(
        f'<span class="look" data-sentence="{index}" '
        f'style="left:{left:.2f}%;top:{top:.2f}%;width:{width:.2f}%;height:{height:.2f}%"></span>'
        for index, sentence in enumerate(sentences)
        for left, top, width, height in boxes_of(sentence)
    )
    boxes += "".join(
        f'<img class="map" data-sentence="{index}" src="{look}" alt="">'
        for index, look in enumerate(picture.maps)
        if look is not None
    )
    alt = f"Drawn with {track.title}, seed {picture.seed}"
    done = sum(verdict.mark == "drawn" for verdict in picture.verdicts)
    judged = sum(verdict.mark != "not judged" for verdict in picture.verdicts)
    caption = f"seed {picture.seed}" + (f" · {done} of {judged}" if judged else "")
    return (
        f'<figure><div class="frame"><img class="{_pixelated(picture)}" src="{data_url(picture.image)}" '
        f'alt="{escape(alt)}">{boxes}</div><figcaption>{caption}</figcaption></figure>'
    )


def _pixelated(picture: Picture) -> str:
    return "pixelated" if picture.image.shape[0] <= 64 else ""


def _progress_html(track: Track) -> str:
    if track.state != "drawing":
        return ""
    if track.is_judged:
        return '<div class="progress"><span>drawn; the judge is looking</span></div>'
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


def _score_html(track: Track) -> str:
    """Share drawn and late details, with an interval over seeds; the quarters as four bars; the time."""
    scores = [picture.score for picture in track.pictures]
    seconds = sum(picture.seconds for picture in track.pictures)
    time = f'<span class="time">{seconds:.1f} s</span>'
    if all(score.drawn is None for score in scores):
        words = _unjudged(track)
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


def _unjudged(track: Track) -> str:
    """Why a panel has no score."""
    reasons = {verdict.found for picture in track.pictures for verdict in picture.verdicts}
    if len(reasons) == 1 and (reason := reasons.pop()):
        return escape(_capital(reason))
    if reasons:
        return "None of these sentences can be judged."
    return (
        "Not judged: no sentence names a shape in a place, or the pictures are real and the app runs without "
        "<code>--judge</code>."
    )


def _verdicts_html(sentences: Sequence[Sentence], pictures: Sequence[Picture]) -> str:
    rows = []
    for index, sentence in enumerate(sentences):
        verdicts = [picture.verdicts[index] for picture in pictures]
        marks = [verdict.mark for verdict in verdicts]
        score = mean_of([verdict.score for verdict in verdicts])
        if len(verdicts) == 1 or marks[0] == "not judged":
            kind, mark = marks[0], marks[0]
        else:
            drawn = marks.count("drawn")
            mark = f"in {drawn} of {len(marks)}"
            kind = "drawn" if drawn == len(marks) else "missing" if not drawn else "some"
        found = verdicts[0].found if len(verdicts) == 1 else ""
        told = f"{'score' if len(verdicts) == 1 else 'mean score'} {score:.2f}" if score is not None else ""
        told += f"; found {found}" if found else ""
        name = (
            kind
            if kind in ("drawn", "missing", "unsure")
            else "some"
            if kind[0].isdigit() or kind == "some"
            else "quiet"
        )
        rows.append(
            f'<li class="{name}" tabindex="0" data-sentence="{index}"><span class="mark">'
            f'<i aria-hidden="true">{_SIGNS.get(kind, "◐")}</i> {escape(mark)}</span>'
            f'<span class="text" dir="auto">{escape(sentence.text)}</span>'
            + (f'<span class="told">{escape(told)}</span>' if told else "")
            + "</li>"
        )
    return f'<ol class="verdicts" aria-label="Sentences and verdicts">{"".join(rows)}</ol>'


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
