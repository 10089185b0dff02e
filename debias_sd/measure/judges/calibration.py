"""How far a judge can be trusted, on pictures whose content is known; and from which score on it may say `drawn`.

Half of the pictures choose the thresholds, the other half says how good they are. True and false sentences weigh the
same, however many there are. `at` is the score that parts them best; from `drawn` on, `sure` of what the judge lets
through is true, and below `missing` as much is false; where no score does, the judge may never say so. The floor is the
same sentences judged in another picture: a judge that scores them as well looks at the words alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from debias_sd.datasets.pictures import read_rgb
from debias_sd.measure.bootstrap import SAMPLES, draw_groups, middle_of
from debias_sd.measure.judges import DRAWN, MARKS, MISSING, Judge, Thresholds
from debias_sd.measure.judges.known import Known
from debias_sd.report import JUDGE, Report

SURE = 0.8
_SUPPORT = 0.05  # share of the true (false) sentences that must lie beyond a threshold
Progress = Callable[[int], object]


@dataclasses.dataclass(frozen=True)
class Scores:
    """One row per claim that was judged; `elsewhere` is its score in another picture, NaN where that was not judged."""

    picture: Int[np.ndarray, " claims"]
    kinds: tuple[str, ...]
    true: Bool[np.ndarray, " claims"]
    score: Float[np.ndarray, " claims"]
    elsewhere: Float[np.ndarray, " claims"]

    def of(self, rows: np.ndarray) -> Scores:
        """Some of the claims, by number or by truth value."""
        numbers = np.arange(len(self.true))[rows]
        kinds = tuple(self.kinds[number] for number in numbers)
        return Scores(self.picture[rows], kinds, self.true[rows], self.score[rows], self.elsewhere[rows])


def score_claims(
    judge: Judge, known: Known, *, progress: Progress = lambda count: None
) -> tuple[Scores, dict[str, int]]:
    """Judge every claim in its own picture and in the next but one; also how many were not judged, by reason."""
    pictures = known.pictures
    images = [read_rgb(one.picture) for one in pictures]
    rows, unjudged = [], {}
    for number, one in enumerate(pictures):
        sentences = [claim.sentence for claim in one.claims]
        other = images[(number + 2) % len(images)]
        judged = zip(one.claims, judge.judge(images[number], sentences), judge.judge(other, sentences), strict=True)
        for claim, here, there in judged:
            if here.is_judged:
                rows.append((number, claim, here.score, there.score if there.is_judged else np.nan))
            else:
                unjudged[here.reason] = unjudged.get(here.reason, 0) + 1
        progress(1)
    scores = Scores(
        np.array([number for number, *_ in rows], dtype=int),
        tuple(claim.kind for _, claim, *_ in rows),
        np.array([claim.is_true for _, claim, *_ in rows], dtype=bool),
        np.array([score for *_, score, _ in rows], dtype=float),
        np.array([there for *_, there in rows], dtype=float),
    )
    return scores, unjudged


def auc(true: Float[np.ndarray, " a"], false: Float[np.ndarray, " b"]) -> float:
    """The probability that a true claim scores above a false one, ties half; NaN without either.

    >>> auc(np.array([0.9, 0.5]), np.array([0.5, 0.1]))
    0.875
    """
    if not len(true) or not len(false):
        return float("nan")
    ordered = np.sort(false)
    below = np.searchsorted(ordered, true, "left") + np.searchsorted(ordered, true, "right")
    return float(below.mean() / (2 * len(false)))


def accuracy(scores: Scores, at: float) -> float:
    """Mean of the shares of true claims from `at` on and of false ones below; NaN without either."""
    if scores.true.all() or not scores.true.any():
        return float("nan")
    return float(((scores.score[scores.true] >= at).mean() + (scores.score[~scores.true] < at).mean()) / 2)


def choose_thresholds(scores: Scores, *, sure: float = SURE, source: str) -> tuple[float, Thresholds]:
    """Return the score that parts best, and from which on and below which `sure` of the claims are true and false."""
    values = np.unique(scores.score)
    candidates = np.concatenate([values[:1], (values[1:] + values[:-1]) / 2])
    at = float(max(candidates, key=lambda candidate: accuracy(scores, candidate)))
    true, false = scores.score[scores.true], scores.score[~scores.true]
    above = [(np.mean(true >= c), np.mean(false >= c)) for c in candidates]
    drawn = [c for c, (t, f) in zip(candidates, above, strict=True) if t >= _SUPPORT and t >= sure * (t + f)]
    missing = [
        c
        for c, (t, f) in zip(candidates, above, strict=True)
        if 1 - f >= _SUPPORT and 1 - f >= sure * ((1 - t) + (1 - f))
    ]
    bounds = (max(at, float(min(drawn))) if drawn else None, min(at, float(max(missing))) if missing else None)
    return at, Thresholds(*bounds, source=source)


def calibrate(
    judge: Judge,
    known: Known,
    *,
    seed: int = 0,
    sure: float = SURE,
    samples: int = SAMPLES,
    progress: Progress = lambda count: None,
) -> dict[str, Any]:
    """Judge `known`, choose thresholds on one half of its pictures, measure on the other.

    ValueError with one sentence where a half is left without true or without false claims.
    """
    scores, unjudged = score_claims(judge, known, progress=progress)
    order = np.random.default_rng(seed).permutation(len(known.pictures))
    chosen = np.isin(scores.picture, order[: len(order) // 2])
    halves = scores.of(chosen), scores.of(~chosen)
    if any(half.true.all() or not half.true.any() for half in halves):
        raise ValueError(
            f"judge {judge.name} judged too few sentences of {known.name} ({len(scores.true)} in all); give more "
            "pictures with sentences that are true and false."
        )
    source = f"{known.name}, {len(order) // 2} pictures"
    at, thresholds = choose_thresholds(halves[0], sure=sure, source=source)
    return {
        **judge.describe(),
        "thresholds": dataclasses.asdict(thresholds),
        "at": at,
        "sure": sure,
        **measure(halves[1], at, thresholds, samples=samples),
        "on_chosen_half": {"auc": _auc_of(halves[0]), "accuracy": accuracy(halves[0], at)},
        "not_judged": unjudged,
        "claims_judged": len(scores.true),
    }


def measure(scores: Scores, at: float, thresholds: Thresholds, *, samples: int = SAMPLES) -> dict[str, Any]:
    """AUC, accuracy at `at`, what the marks are worth, and the floor; 95 % intervals over pictures."""
    numbers, group = np.unique(scores.picture, return_inverse=True)
    members = [np.flatnonzero(group == number) for number in range(len(numbers))]
    drawn = [
        scores.of(np.concatenate([members[n] for n in rows])) for rows in draw_groups(len(numbers), samples=samples)
    ]
    marks = np.array([MARKS.index(thresholds.mark(score)) for score in scores.score])
    falsehoods = sorted({kind for kind, true in zip(scores.kinds, scores.true, strict=True) if not true})
    by_kind = {kind: np.array([one == kind for one in scores.kinds]) for kind in falsehoods}
    there = scores.of(np.isfinite(scores.elsewhere))
    moved = dataclasses.replace(there, score=there.elsewhere)
    return {
        "auc": _auc_of(scores),
        "auc_interval": middle_of(np.array([_auc_of(one) for one in drawn])),
        "accuracy": accuracy(scores, at),
        "accuracy_interval": middle_of(np.array([accuracy(one, at) for one in drawn])),
        "auc_by_kind": {kind: auc(scores.score[scores.true], scores.score[rows]) for kind, rows in by_kind.items()},
        "marks_of_true": _shares(marks[scores.true]),
        "marks_of_false": _shares(marks[~scores.true]),
        "drawn_that_is_true": _purity(marks, scores.true, MARKS.index(DRAWN)),
        "missing_that_is_false": _purity(marks, ~scores.true, MARKS.index(MISSING)),
        "floor": {"auc": _auc_of(moved), "accuracy": accuracy(moved, at), "marks_of_true": _shares(
            np.array([MARKS.index(thresholds.mark(score)) for score in moved.score[moved.true]]))},
        "claims": len(scores.true),
        "pictures": len(numbers),
    }  # fmt: skip


def _auc_of(scores: Scores) -> float:
    return auc(scores.score[scores.true], scores.score[~scores.true])


def _shares(marks: Int[np.ndarray, " claims"]) -> dict[str, float]:
    """Percent of each mark."""
    return {name: float(100 * np.mean(marks == number)) for number, name in enumerate(MARKS)} if len(marks) else {}


def _purity(marks: np.ndarray, right: np.ndarray, mark: int) -> float | None:
    """Percent that is right among those with `mark`, right and wrong claims weighing the same; None without any."""
    hit, miss = np.mean(marks[right] == mark), np.mean(marks[~right] == mark)
    return float(100 * hit / (hit + miss)) if hit + miss else None


def read_thresholds(paths: Sequence[str | Path], judge: Judge) -> Thresholds | None:
    """The thresholds that one of the reports has for this very judge; None where none is about a judge of its name.

    ValueError for a report of another kind, and for one of a judge of that name with other weights or questions.
    """
    about = judge.describe()
    for path in paths:
        report = Report.read(path)
        if report.kind != JUDGE:
            raise ValueError(
                f"report {path} is of kind {report.kind}, not a calibration; make one: debias-sd calibrate."
            )
        found = report.encoders.get(judge.name)
        if found is None:
            continue
        for key in ("sha256", "content_sha256", "question", "changes"):
            if found.get(key) != about.get(key):
                raise ValueError(f"{key} of {judge.name} differs in {path}; calibrate it again: debias-sd calibrate.")
        return Thresholds(**found["thresholds"])
    return None
