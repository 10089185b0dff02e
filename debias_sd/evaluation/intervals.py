"""Bootstrap 95 % intervals of retrieval scores, and of the difference of two encoders on the same pool.

What is drawn with replacement are pictures, each with all its captions: five captions of one picture are no five
independent observations. Both encoders of a difference are measured on the same draws (paired).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from debias_sd.metrics import mean_rank, median_rank, recall_at

KS = (1, 5, 10)
SCORES = (*(f"r{k}" for k in KS), "mean_rank", "median_rank")
SAMPLES = 1000
SEED = 0


def scores_of(ranks: Int[np.ndarray, " queries"]) -> dict[str, float]:
    """R@1/5/10 in percent, median and mean rank."""
    recalls = {f"r{k}": 100 * recall_at(ranks, k) for k in KS}
    return recalls | {"median_rank": median_rank(ranks), "mean_rank": mean_rank(ranks)}


def draw_scores(
    ranks: Int[np.ndarray, " queries"], groups: Int[np.ndarray, " queries"], *, samples: int = SAMPLES, seed: int = SEED
) -> Float[np.ndarray, "samples scores"]:
    """Return SCORES, recalls in percent, on `samples` draws of the groups; the same draws for the same groups.

    `groups` numbers the picture of each query.
    """
    _, group = np.unique(groups, return_inverse=True)
    columns = [100.0 * (ranks <= k) for k in KS] + [ranks.astype(float), np.ones(len(ranks))]
    sums = np.stack([np.bincount(group, weights=column) for column in columns], axis=1)
    order = np.argsort(ranks, kind="stable")
    ordered, group = ranks[order], group[order]
    rng = np.random.default_rng(seed)
    drawn = np.empty((samples, len(SCORES)))
    for sample in drawn:
        times = np.bincount(rng.integers(0, len(sums), len(sums)), minlength=len(sums))
        *totals, queries = times @ sums
        sample[:-1] = np.array(totals) / queries
        sample[-1] = _median(ordered, times[group])
    return drawn


def _median(ordered: Int[np.ndarray, " queries"], times: Int[np.ndarray, " queries"]) -> float:
    """The median of ranks in order, each as often as it was drawn."""
    ends = times.cumsum()
    middle = np.searchsorted(ends, [(ends[-1] - 1) // 2, ends[-1] // 2], side="right")
    return float(ordered[middle].mean())


def intervals_of(drawn: Float[np.ndarray, "samples scores"]) -> dict[str, list[float]]:
    """The middle 95 % of each score's draws."""
    bounds = np.percentile(drawn, [2.5, 97.5], axis=0)
    return {name: [float(low), float(high)] for name, low, high in zip(SCORES, *bounds, strict=True)}
