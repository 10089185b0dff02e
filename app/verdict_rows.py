"""Scores and verdicts under a panel's pictures: what one picture shows, or how many of several do.

Late details of one picture are few: the interval over seeds says what one picture is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from app.live_run import Picture, Run, Track
from debias_sd.comparison import NO_JUDGE, Sentence

# Two-sided 95 % quantiles of Student's t for 1 to 7 degrees of freedom: 2 to 8 seeds.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of those that are there."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def interval_of(values: Sequence[float | None], *, low: float = 0, high: float = 100) -> tuple[float, float] | None:
    """The 95 % interval of the mean over seeds (Student's t), cut to [low, high]; None for fewer than two values.

    >>> interval_of([50.0, 50.0, 50.0])
    (50.0, 50.0)
    >>> [round(end, 1) for end in interval_of([40.0, 60.0, 50.0, 50.0])]
    [37.0, 63.0]
    >>> interval_of([50.0]) is None
    True
    """
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    mean = sum(known) / len(known)
    spread = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - 1))
    reach = _T95[min(len(known) - 1, len(_T95)) - 1] * spread / math.sqrt(len(known))
    return max(low, mean - reach), min(high, mean + reach)


_SIGNS = {"drawn": "✓", "missing": "✕", "unsure": "?", "not read": "–", "not judged": "·"}
_IN_PART = "◐"


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


def scores_html(run: Run, track: Track) -> str:
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


def verdicts_html(sentences: Sequence[Sentence], pictures: Sequence[Picture]) -> str:
    """One row per sentence, which lights up where it was looked for."""
    reasons = {verdict.reason for picture in pictures for verdict in picture.verdicts}
    says_why = len(reasons) > 1  # else the panel says it once for all
    rows = "".join(_row(index, sentence, pictures, says_why=says_why) for index, sentence in enumerate(sentences))
    return f'<ol class="verdicts" aria-label="Sentences and verdicts">{rows}</ol>'


def _row(index: int, sentence: Sentence, pictures: Sequence[Picture], *, says_why: bool) -> str:
    verdicts = [picture.verdicts[index] for picture in pictures]
    kind, mark = _mark_of([verdict.mark for verdict in verdicts])
    is_one = len(verdicts) == 1
    score = mean_of([verdict.score for verdict in verdicts])
    told = "" if score is None else f"{'score' if is_one else 'mean score'} {score:.2f}"
    if is_one and (found := verdicts[0].found):
        told += f"; found {found}"
    elif says_why:
        told = told or verdicts[0].reason
    return (
        f'<li class="{_class_of(kind)}" tabindex="0" data-sentence="{index}"><span class="mark">'
        f'<i aria-hidden="true">{_SIGNS.get(kind, _IN_PART)}</i> {escape(mark)}</span>'
        f'<span class="text" dir="auto">{escape(sentence.text)}</span>'
        + (f'<span class="told">{escape(told)}</span>' if told else "")
        + "</li>"
    )


def _mark_of(marks: Sequence[str]) -> tuple[str, str]:
    """The kind of a row and its words: one picture's mark, or that of all, or how many pictures show the sentence.

    >>> _mark_of(["1 of 2"]), _mark_of(["drawn", "drawn"]), _mark_of(["drawn", "missing", "missing"])
    (('some', '1 of 2'), ('drawn', 'in 2 of 2'), ('some', 'in 1 of 3'))
    >>> _mark_of(["not read", "not read"]), _mark_of(["unsure", "missing"])
    (('not read', 'not read'), ('unsure', 'unsure'))
    """
    first, drawn = marks[0], list(marks).count("drawn")
    if len(set(marks)) == 1 and (first in ("unsure", "not read", "not judged") or len(marks) == 1):
        return (first if first in _SIGNS else "some"), first
    if not drawn and "unsure" in marks:
        return "unsure", "unsure"
    told = f"in {drawn} of {len(marks)}"
    if drawn == len(marks):
        return "drawn", told
    is_nowhere = not drawn and set(marks) <= {"missing", "not read"}
    return ("missing" if is_nowhere else "some"), told


def _class_of(kind: str) -> str:
    return kind if kind in ("drawn", "missing", "unsure", "some") else "quiet"
