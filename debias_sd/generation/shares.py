"""From verdicts to scores: the share of sentences drawn, by place; intervals and paired differences over prompts.

The late-detail score is the share marked drawn, in percent, of the judged sentences in the second half of a prompt's
details (all sentences but the first). `score` is the same with the judge's mean score, which needs no threshold.
Sentences that a judge cannot judge are left out of both and counted; unsure ones are in, as not drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from debias_sd.evaluation.bootstrap import SAMPLES, draw_groups, middle_of
from debias_sd.fidelity import SHORT_WINDOW
from debias_sd.generation.sentences import Sentences, Table
from debias_sd.judges.calibration import auc


def summarise(table: Table, sentences: Sentences, *, samples: int = SAMPLES) -> dict[str, Any]:
    """Scores of one encoder by one judge; None where nothing was judged."""
    late, quarter = sentences.is_late, sentences.quarter
    everything = np.ones(len(late), dtype=bool)
    parts = {
        "all": everything,
        "summary": sentences.number == 0,
        "first_half": (sentences.number > 0) & ~late,
        "past_77": sentences.start >= SHORT_WINDOW - 1,
    }
    quarters = [quarter == number for number in range(4)]
    counts = counts_of(table, sentences, late)
    judged = int(table.is_judged.sum())
    return {
        "late_detail": _percent(table, late),
        "late_detail_interval": _interval(counts[:, 0], counts[:, 2], samples),
        "late_score": _mean_score(table, late),
        "late_score_interval": _interval(counts[:, 1], counts[:, 2], samples),
        **{name: _percent(table, rows) for name, rows in parts.items()},
        "score": _mean_score(table, everything),
        "unsure": float(100 * table.unsure.sum() / judged) if judged else None,
        "by_quarter": [_percent(table, rows) for rows in quarters],
        "score_by_quarter": [_mean_score(table, rows) for rows in quarters],
        "judged_by_quarter": [int(table.is_judged[:, rows].sum()) for rows in quarters],
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
    return np.stack(
        [np.bincount(sentences.prompt[rows], column[rows], minlength=prompts) for column in columns], axis=1
    )


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
    judged = table.is_judged[:, rows]
    return float(100 * table.score[:, rows][judged].mean()) if judged.any() else None


def _interval(
    sums: Float[np.ndarray, " prompts"], counts: Float[np.ndarray, " prompts"], samples: int
) -> list[float] | None:
    """95 % of 100 * sums / counts over bootstrap draws of prompts."""
    rows = draw_groups(len(sums), samples=samples)
    with np.errstate(invalid="ignore", divide="ignore"):
        return middle_of(100 * sums[rows].sum(axis=1) / counts[rows].sum(axis=1))
