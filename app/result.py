"""The result of a run: one line that says how many sentences each encoder drew, what many prompts say, the scores.

One denominator: sentences of the prompt that can be judged. Late details of one picture are few: the interval over
seeds says what one picture is worth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from app.live_run import Picture, Run, Track
from app.models import Measured
from debias_sd.comparison import NO_JUDGE
from debias_sd.measure.judges import DRAWN
from debias_sd.text import count_of

# Two-sided 95 % quantiles of Student's t for 1 to 7 degrees of freedom: 2 to 8 seeds.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365)


def counts_of(picture: Picture) -> tuple[int, int]:
    """Sentences drawn, and sentences that were judged."""
    return sum(v.mark == DRAWN for v in picture.verdicts), sum(v.is_judged for v in picture.verdicts)


def pictures_before(run: Run, track: Track) -> Sequence[Picture]:
    tracks = run.earlier.tracks if run.earlier is not None else ()
    return next((other.pictures for other in tracks if other.name == track.name), ())


def status_of(run: Run) -> str:
    """Where a run is that is not over, in one line; it is read out."""
    if run.before is not None:
        return f"{run.before} before you"
    drawing = next((track for track in run.tracks if track.state == "drawing"), None)
    return f"Drawing with {drawing.title}" if drawing else "Drawing"


def status_html(
    words: str, *, state: str = "", blind: bool = False, prompt: str | None = None, mean: str = "", room: str = ""
) -> str:
    """The result, or where the run is; `words` and `mean` are HTML, `room` is text as long as the result will be.

    Of pictures that are there it knows their `prompt`, and says when the box holds another one.
    """
    about = "" if prompt is None else f' data-prompt="{escape(prompt)}"'
    room = f'<span class="holds" aria-hidden="true">{escape(room)}</span>' if room else ""
    stale = '<span class="stale" hidden> The prompt has changed since.</span>'
    mean = f'<p class="mean">{mean}</p>' if mean else ""
    return (
        f'<div class="status{" blind" if blind else ""}" role="status" aria-live="polite" data-state="{state}"{about}>'
        f'<p class="result">{room}<span class="now">{words}</span>{stale}</p>{mean}</div>'
    )


def room_of(run: Run) -> str:
    """A text as long as the result of a run that is under way: nothing below moves when it comes."""
    is_several, is_moved = run.request.seeds > 1, run.earlier is not None
    number = "0.0" if is_several else "0"
    told = ", ".join(f"{track.title} {f'{number} → {number}' if is_moved else number}" for track in run.tracks)
    first = "Before and after: " if is_moved else "drew "
    seeds = f", in the mean over {run.request.seeds} seeds" if is_several else ""
    return f"{first}{told} of {len(run.sentences) or 9} sentences{seeds}."


def result_of(run: Run) -> str:
    """What a run that is over shows, in one line of HTML: how many sentences each encoder drew, of how many."""
    if any(track.state == "stopped" for track in run.tracks):
        return "Stopped."
    failed = [escape(track.title) for track in run.tracks if track.state == "failed"]
    also = f" {', '.join(failed)} failed." if failed else ""
    tracks = [track for track in run.tracks if track.pictures]
    if all(picture.score.drawn is None for track in tracks for picture in track.pictures):
        return unjudged(run, tracks) + also
    told, of = [], {judged for track in tracks for _, judged in map(counts_of, track.pictures)}
    for track in tracks:
        before = pictures_before(run, track)
        number = f"{_number(before)} → {_number(track.pictures)}" if before else _number(track.pictures)
        verb = "drew " if not told and not before else ""
        elsewhere = f" of {counts_of(track.pictures[0])[1]}" if len(of) > 1 else ""
        told.append(f'<span class="one">{escape(track.title)} {verb}<b>{number}</b>{elsewhere}</span>')
    first = "Before and after: " if any(pictures_before(run, track) for track in tracks) else ""
    whole = f" of {count_of(of.pop(), 'sentence')}" if len(of) == 1 else " sentences"
    seeds = f", in the mean over {run.request.seeds} seeds" if run.request.seeds > 1 else ""
    return f"{first}{', '.join(told)}{whole}{seeds}.{also}"


def _number(pictures: Sequence[Picture]) -> str:
    """Sentences drawn: of one picture, or the mean of several."""
    mean = sum(drawn for drawn, _ in map(counts_of, pictures)) / len(pictures)
    return f"{mean:.0f}" if len(pictures) == 1 else f"{mean:.1f}"


def mean_of_many(run: Run, measured: Measured | None) -> str:
    """What a report says of the run's encoders, so that one example does not overstate; HTML."""
    if measured is None:
        return ""
    known = [track for track in run.tracks if track.name in measured.drawn]
    if not known:
        return ""
    told = [
        f"{escape(track.title)} {'' if place else 'draws '}{measured.drawn[track.name]:.0f} %"
        for place, track in enumerate(known)
    ]
    how = f"{measured.steps} steps, guidance {measured.guidance:g}; results/sentences"
    words = f"Measured over {measured.prompts} prompts: {', '.join(told)} of the sentences."
    return f'<span title="{how}">{words}</span>'


def unjudged(run: Run, tracks: Sequence[Track]) -> str:
    """Why a run has no shares drawn, as HTML."""
    verdicts = [verdict for track in tracks for picture in track.pictures for verdict in picture.verdicts]
    if run.judge is not None and any(verdict.score is not None for verdict in verdicts):
        scores = ", ".join(
            f"{escape(track.title)} <b>{score:.2f}</b>"
            for track in tracks
            if (score := mean_of([v.score for picture in track.pictures for v in picture.verdicts])) is not None
        )
        return (
            f"Mean score {scores}. By its thresholds this judge is never sure enough to say <i>drawn</i>: read its "
            "scores alone."
        )
    reasons = {verdict.reason for verdict in verdicts}
    if reasons == {NO_JUDGE}:
        return "Not judged: the pictures are real, and the app runs without <code>--judge</code>."
    if len(reasons) == 1:
        return escape(f"Not judged: {reasons.pop()}")
    return "None of these sentences can be judged." if verdicts else "No picture."


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


def scores_html(run: Run) -> str:
    """The scores in detail, a row per encoder: shares drawn with intervals over seeds, quarters, seconds."""
    rows = []
    for track in run.tracks:
        if not track.pictures:
            continue
        scores = [picture.score for picture in track.pictures]
        seconds = sum(picture.seconds for picture in track.pictures)
        values = [[score.drawn for score in scores], [score.late for score in scores]]
        quarters = [mean_of([score.quarters[index] for score in scores]) for index in range(4)]
        cells = [_with_interval(value) for value in values] + [_percent(value) for value in quarters]
        cells.append(f"{seconds:.1f} s")
        rows.append(f"<tr><th scope=row>{escape(track.title)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = ("encoder", "sentences drawn", "late details", "1st quarter", "2nd", "3rd", "4th", "time")
    columns = "".join(f"<th scope=col>{words}</th>" for words in head)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Scores"><table class="scores"><thead><tr>{columns}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
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
    return f"{_percent(mean_of(values))}{between}"
