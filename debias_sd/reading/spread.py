"""Values by place, averaged over captions, with bootstrap intervals; the paired difference of two encoders.

A caption counts once in each bin, by the mean of its values there. What is drawn with replacement are captions; the
draws depend on their number and the seed alone, so that two encoders that were measured on the same captions have the
same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float, Int

SEED = 0
Bins = Mapping[str, list[float | None] | list[int] | list[str]]


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
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, count, (samples, count))
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
    """Mean and 95 % interval of each bin that some caption has, and how many have it."""
    used = np.flatnonzero(np.isfinite(table).any(axis=0))
    low, high = _middle(drawn_means(table, draws)[:, used])
    return {
        "places": [names[bin] for bin in used],
        "mean": np.nanmean(table[:, used], axis=0).tolist(),
        "low": low,
        "high": high,
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


def _middle(drawn: Float[np.ndarray, "samples bins"]) -> tuple[list[float | None], list[float | None]]:
    """The middle 95 % of each bin's draws, None for a bin that no draw has."""
    bounds: tuple[list[float | None], list[float | None]] = ([], [])
    for column in drawn.T:
        there = column[np.isfinite(column)]
        for side, value in zip(bounds, np.percentile(there, [2.5, 97.5]) if len(there) else (None, None), strict=True):
            side.append(None if value is None else float(value))
    return bounds
