"""Values by place, averaged over captions, with bootstrap intervals; the paired difference of two encoders.

A caption counts once in each bin, by the mean of its values there. What is drawn with replacement are captions; the
draws depend on their number and the seed alone, so that two encoders that were measured on the same captions have the
same ones.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

from debias_sd.measure.bootstrap import draw_groups, middle_of

SEED = 0


def mean_in_bins(
    values: Float[np.ndarray, " places"],
    captions: Int[np.ndarray, " places"],
    bins: Int[np.ndarray, " places"],
    *,
    shape: tuple[int, int],
) -> Float[np.ndarray, "captions bins"]:
    """The mean of each caption's values in each bin, NaN where it has none; `shape` is (captions, bins)."""
    sums, counts = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (captions, bins), values)
    np.add.at(counts, (captions, bins), 1)
    return np.divide(sums, counts, out=np.full(shape, np.nan), where=counts > 0)


def draws_of(count: int, *, samples: int, seed: int = SEED) -> Float[np.ndarray, "samples captions"]:
    """How often each of `count` captions is in each draw."""
    drawn = draw_groups(count, samples=samples, seed=seed)
    return np.stack([np.bincount(row, minlength=count) for row in drawn]).astype(float)


def drawn_means(
    table: Float[np.ndarray, "captions bins"], draws: Float[np.ndarray, "samples captions"]
) -> Float[np.ndarray, "samples bins"]:
    """The mean of each bin on each draw, NaN where no drawn caption has the bin."""
    there = np.isfinite(table)
    sums, counts = draws @ np.where(there, table, 0), draws @ there
    return np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)


def spread_of(
    table: Float[np.ndarray, "captions bins"], draws: Float[np.ndarray, "samples captions"], names: list[str]
) -> dict[str, list]:
    """Mean and 95 % interval of each bin that some caption has, and how many have it.

    An interval is null where fewer than half of the draws have such a caption.
    """
    used = np.flatnonzero(np.isfinite(table).any(axis=0))
    bounds = [middle_of(column) for column in drawn_means(table, draws)[:, used].T]
    return {
        "places": [names[bin] for bin in used],
        "mean": np.nanmean(table[:, used], axis=0).tolist(),
        "low": [bound and bound[0] for bound in bounds],
        "high": [bound and bound[1] for bound in bounds],
        "captions": np.isfinite(table[:, used]).sum(axis=0).tolist(),
    }


def difference_of(
    one: Float[np.ndarray, "captions bins"],
    other: Float[np.ndarray, "captions bins"],
    draws: Float[np.ndarray, "samples captions"],
    names: list[str],
) -> dict[str, list]:
    """The first minus the second by bin, with its interval on the same draws: the difference within each caption."""
    found = spread_of(one - other, draws, names)
    found["difference"] = found.pop("mean")
    return found
