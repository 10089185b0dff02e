"""From verdicts to scores: the share of sentences drawn, by place; intervals and paired differences over prompts.

The late-detail score is the share marked drawn, in percent, of the judged late details (`measure.places`).
`score` is the same with the judge's mean score, which needs no threshold. Sentences that a judge cannot judge are left
out of both and counted; unsure ones, and those of whose things some are there, are in, as not drawn.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from debias_sd.measure.bootstrap import SAMPLES, draw_groups, middle_of
from debias_sd.measure.judges import DRAWN, UNSURE, Verdict
from debias_sd.measure.judges.calibration import auc
from debias_sd.measure.places import Sentences, sentences_of


@dataclasses.dataclass(frozen=True)
class Table:
    """What one judge says about one encoder's pictures, a row per seed, a column per sentence; unjudged scores are NaN.

    `aspects`: of a judge that tells what is right in part, the same by name.
    """

    score: Float[np.ndarray, "seeds sentences"]
    drawn: Bool[np.ndarray, "seeds sentences"]
    unsure: Bool[np.ndarray, "seeds sentences"]
    reasons: dict[str, int]
    aspects: dict[str, Float[np.ndarray, "seeds sentences"]] = dataclasses.field(default_factory=dict)

    @property
    def is_judged(self) -> Bool[np.ndarray, "seeds sentences"]:
        return np.isfinite(self.score)


def table_of(rows: Sequence[Sequence[Verdict]]) -> Table:
    """The verdicts on every sentence, a row per seed, as numbers."""
    flat = [verdict for row in rows for verdict in row]
    names = dict.fromkeys(name for verdict in flat for name in verdict.aspects)
    return Table(
        np.array([[v.score if v.is_judged else np.nan for v in row] for row in rows], dtype=float),
        np.array([[v.is_judged and v.mark == DRAWN for v in row] for row in rows], dtype=bool),
        np.array([[v.is_judged and v.mark == UNSURE for v in row] for row in rows], dtype=bool),
        dict(Counter(verdict.reason for verdict in flat if not verdict.is_judged)),
        {name: np.array([[v.aspects.get(name, np.nan) for v in row] for row in rows]) for name in names},
    )


@dataclasses.dataclass(frozen=True)
class Score:
    """Of one picture: shares drawn in percent, None where nothing was judged: late details, quarters, all."""

    late: float | None
    quarters: tuple[float | None, ...]
    drawn: float | None


def score_of(verdicts: Sequence[Verdict], *, can_say_drawn: bool = True) -> Score:
    """The score of one picture by the verdicts on its prompt's sentences, by the rules of `summarise`.

    A judge whose thresholds never let it say drawn has no shares: 0 percent would be said of the picture, and is the
    judge's.
    """
    if not can_say_drawn or not verdicts:
        return Score(None, (None,) * 4, None)
    sentences, table = sentences_of([[verdict.sentence for verdict in verdicts]]), table_of([verdicts])
    quarters = (_percent(table, sentences.quarter == number) for number in range(4))
    return Score(_percent(table, sentences.is_late), tuple(quarters), _percent(table, sentences.number >= 0))


def summarise(table: Table, sentences: Sentences, *, samples: int = SAMPLES) -> dict[str, Any]:
    """Scores of one encoder by one judge; None where nothing was judged."""
    late, quarter = sentences.is_late, sentences.quarter
    parts = {
        "all": sentences.number >= 0,
        "summary": sentences.number == 0,
        "first_half": sentences.half == 0,
        "second_half": sentences.half == 1,
        "past_77": sentences.is_past_77,
    }
    quarters = [quarter == number for number in range(4)]
    by_sentence = [(sentences.number == n) & ~sentences.repeats for n in range(sentences.number.max() + 1)]
    counts = counts_of(table, sentences, late)
    judged = int(table.is_judged.sum())
    return {
        "late_detail": _percent(table, late),
        "late_detail_interval": _interval(counts[:, 0], counts[:, 2], samples),
        "late_score": _mean_score(table, late),
        "late_score_interval": _interval(counts[:, 1], counts[:, 2], samples),
        **{name: _percent(table, rows) for name, rows in parts.items()},
        "score": _mean_score(table, parts["all"]),
        "summary_score": _mean_score(table, parts["summary"]),
        "unsure": float(100 * table.unsure.sum() / judged) if judged else None,
        "by_quarter": [_percent(table, rows) for rows in quarters],
        "score_by_quarter": [_mean_score(table, rows) for rows in quarters],
        "judged_by_quarter": [int(table.is_judged[:, rows].sum()) for rows in quarters],
        "by_sentence": [_percent(table, rows) for rows in by_sentence],
        "late_aspects": {name: _mean(values[:, late]) for name, values in table.aspects.items()},
        "judged": judged,
        "not_judged": dict(table.reasons),
        "late_judged": int(table.is_judged[:, late].sum()),
        "late_per_prompt": [[int(drawn), int(count)] for drawn, _, count in counts],
        "scores": [[None if np.isnan(score) else round(float(score), 4) for score in row] for row in table.score],
    }


def counts_of(
    table: Table, sentences: Sentences, rows: Bool[np.ndarray, " sentences"]
) -> Float[np.ndarray, "prompts 3"]:
    """Of each prompt, all seeds together: sentences drawn, sum of their scores, sentences judged."""
    columns = np.stack([table.drawn, np.nan_to_num(table.score), table.is_judged]).sum(axis=1, dtype=float)
    prompts = len(sentences.texts)
    counts = [np.bincount(sentences.prompt[rows], column[rows], minlength=prompts) for column in columns]
    return np.stack(counts, axis=1, dtype=float)  # of no sentences bincount gives integers


def difference(ours: Table, theirs: Table, sentences: Sentences, *, samples: int = SAMPLES) -> dict[str, Any]:
    """Ours minus theirs on the same prompts and seeds, in points, over the sentences that were judged in both."""
    both = ours.is_judged & theirs.is_judged
    tables = [
        Table(np.where(both, one.score, np.nan), one.drawn & both, one.unsure & both, {}) for one in (ours, theirs)
    ]
    result = {}
    for name, rows in (("late", sentences.is_late), ("all", np.ones(both.shape[1], dtype=bool))):
        a, b = (counts_of(table, sentences, rows) for table in tables)
        for place, kind in enumerate(("drawn", "score")):
            total = a[:, 2].sum()
            result[f"{name}_{kind}"] = {
                "points": float(100 * (a[:, place] - b[:, place]).sum() / total) if total else None,
                "interval": _interval(a[:, place] - b[:, place], a[:, 2], samples),
            }
        result[f"{name}_judged"] = int(a[:, 2].sum())
    return result


def agreement(ours: Table, theirs: Table) -> dict[str, Any]:
    """How far two judges say the same of the same pictures.

    `same`: percent of the sentences that both judged and both call drawn, or both not. `kappa`: the same beyond chance
    (Cohen). `auc`: the probability that a sentence which `theirs` calls drawn scores higher with `ours` than another.
    """
    both = ours.is_judged & theirs.is_judged
    a, b = ours.drawn[both], theirs.drawn[both]
    if not len(a):
        return {"both_judged": 0, "same": None, "kappa": None, "auc": None}
    same = float(np.mean(a == b))
    chance = float(a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean()))
    known = auc(ours.score[both][b], ours.score[both][~b])
    return {
        "both_judged": len(a),
        "same": 100 * same,
        "kappa": (same - chance) / (1 - chance) if chance < 1 else None,
        "auc": known if np.isfinite(known) else None,
    }


def _percent(table: Table, rows: Bool[np.ndarray, " sentences"]) -> float | None:
    judged = table.is_judged[:, rows].sum()
    return float(100 * table.drawn[:, rows].sum() / judged) if judged else None


def _mean_score(table: Table, rows: Bool[np.ndarray, " sentences"]) -> float | None:
    return _mean(table.score[:, rows])


def _mean(values: Float[np.ndarray, "seeds some"]) -> float | None:
    """In percent, over what is known."""
    known = values[np.isfinite(values)]
    return float(100 * known.mean()) if len(known) else None


def _interval(
    sums: Float[np.ndarray, " prompts"], counts: Float[np.ndarray, " prompts"], samples: int
) -> list[float] | None:
    """95 % of 100 * sums / counts over bootstrap draws of prompts."""
    rows = draw_groups(len(sums), samples=samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        return middle_of(100 * sums[rows].sum(axis=1) / counts[rows].sum(axis=1))
