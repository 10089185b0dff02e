"""Bootstrap intervals over groups of observations that belong together: all claims of a picture, all seeds of a prompt.

Groups are drawn with replacement, as many as there are. The draws depend on their number and the seed alone, so that
two encoders that were measured on the same groups have the same ones, which gives a paired difference. Of values by
place the groups are captions: a caption counts once in each bin, by the mean of its values there.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

SAMPLES = 1000
SEED = 0


def draw_groups(groups: int, *, samples: int = SAMPLES, seed: int = SEED) -> Int[np.ndarray, "samples groups"]:
    """Numbers of the groups in each draw; the same for the same arguments."""
    return np.random.default_rng(seed).integers(0, groups, (samples, groups))


def middle_of(draws: Float[np.ndarray, " samples"]) -> list[float] | None:
    """The middle 95 % of the draws, those without a value left out; None where fewer than half have one."""
    known = draws[np.isfinite(draws)]
    if 2 * len(known) < max(1, len(draws)):
        return None
    low, high = np.percentile(known, [2.5, 97.5])
    return [float(low), float(high)]


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
