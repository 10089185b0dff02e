"""Features -> ranks -> recalls, mean and median rank, with bootstrap intervals.

A rank is 1 for the best. A tie counts against us: a model that gives all pairs one score must not look perfect. For an
image with several captions the best rank over them counts (arXiv 2602.22419 follows this protocol). Worked example,
two queries and three candidates, right ones 0 and 2: `[[9, 1, 1], [5, 7, 6]]` has ranks 1 and 2, R@1 50 %.
Intervals draw pictures with replacement, each with all its captions: five captions of one picture are not five
independent observations. Both encoders of a difference are measured on the same draws (paired).
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from debias_sd.measure.bootstrap import SAMPLES

BLOCK = 1 << 24  # similarities in memory at a time: 64 MiB in float32
DRAWN = 1 << 18  # drawn queries at a time: together, since a loop over a small set's draws took most of its time
KS = (1, 5, 10)
SCORES = (*(f"r{k}" for k in KS), "mean_rank", "median_rank")


class RetrievalRanks(NamedTuple):
    """Ranks of both directions: `t2i` one of each caption, `i2t` one of each image that has a caption."""

    t2i: Int[np.ndarray, " captions"]
    i2t: Int[np.ndarray, " images"]


def retrieval_ranks(
    image_features: Float[np.ndarray, "images dim"],
    caption_features: Float[np.ndarray, "captions dim"],
    image_of_caption: Int[np.ndarray, " captions"],
    *,
    chunk: int = 1024,
    block: int = BLOCK,
) -> RetrievalRanks:
    """Return the ranks of both directions for normalised features.

    At most `chunk` queries and `block` similarities at a time are in memory: 64 MiB for pools of any size, where all
    of Flickr30k's would be 18 GiB. Nothing is sorted: a rank is a count. Images without a caption stay among the
    candidates of text to image and are not a query of image to text. ValueError for features that are not finite.
    """
    _check_finite(image_features, caption_features)
    t2i = np.empty(len(caption_features), np.int64)
    for rows in _blocks(len(caption_features), candidates=len(image_features), chunk=chunk, block=block):
        similarity = caption_features[rows] @ image_features.T
        right = np.take_along_axis(similarity, image_of_caption[rows][:, None], axis=1)
        t2i[rows] = np.count_nonzero(similarity >= right, axis=1)
    order = np.argsort(image_of_caption, kind="stable")
    captioned, starts = np.unique(image_of_caption[order], return_index=True)
    ends = np.append(starts[1:], len(order))
    i2t = np.empty(len(captioned), np.int64)
    for rows in _blocks(len(captioned), candidates=len(caption_features), chunk=chunk, block=block):
        similarity = image_features[captioned[rows]] @ caption_features.T
        for scores, query in zip(similarity, range(rows.start, rows.stop), strict=True):
            own = scores[order[starts[query] : ends[query]]]
            best = own.max()
            i2t[query] = 1 + np.count_nonzero(scores >= best) - np.count_nonzero(own >= best)
    return RetrievalRanks(t2i=t2i, i2t=i2t)


def _blocks(queries: int, *, candidates: int, chunk: int, block: int) -> Iterator[slice]:
    """Slices of the queries, each with at most `chunk` of them and `block` similarities (but one query at least)."""
    size = max(1, min(chunk, block // max(1, candidates)))
    return (slice(at, min(at + size, queries)) for at in range(0, queries, size))


def _check_finite(*features: np.ndarray) -> None:
    """Raise ValueError where a product of the features could be NaN or infinite (it is bounded by their lengths)."""
    longest = [np.linalg.norm(rows, axis=1).max(initial=0) for rows in features]
    if not np.isfinite(np.prod(longest)):
        raise ValueError(
            "similarities hold NaN or infinity but ranks need finite numbers; check the encoder's features."
        )


def family_share(
    image_features: Float[np.ndarray, "images dim"],
    caption_features: Float[np.ndarray, "captions dim"],
    image_of_caption: Int[np.ndarray, " captions"],
    *,
    size: int,
) -> float:
    """Return the percent of captions whose own picture scores above its near-twins, ties against us.

    Every `size` images in a row are a family: 100 / `size` is chance.
    """
    members = image_of_caption[:, None] // size * size + np.arange(size)
    scores = np.einsum("cd,cfd->cf", caption_features, image_features[members])
    own = np.take_along_axis(scores, image_of_caption[:, None] % size, axis=1)
    return float(100 * ((scores >= own).sum(axis=1) == 1).mean())


def scores_of(ranks: Int[np.ndarray, " queries"]) -> dict[str, float]:
    """Return R@1/5/10 in percent, median and mean rank; ValueError without queries: a mean of nothing is no score."""
    if ranks.size == 0:
        raise ValueError("there are 0 ranks but a score needs at least 1 query; check that the records were found.")
    recalls = {f"r{k}": 100 * float((ranks <= k).mean()) for k in KS}
    return recalls | {"median_rank": float(np.median(ranks)), "mean_rank": float(ranks.mean())}


def draw_scores(
    ranks: Int[np.ndarray, " queries"], groups: Int[np.ndarray, " queries"], *, samples: int = SAMPLES, seed: int = 0
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
    for rows in _blocks(samples, candidates=len(ranks), chunk=samples, block=DRAWN):
        count = rows.stop - rows.start
        chosen = rng.integers(0, len(sums), (count, len(sums))) + len(sums) * np.arange(count)[:, None]
        times = np.bincount(chosen.ravel(), minlength=count * len(sums)).reshape(count, len(sums))
        totals = times @ sums
        drawn[rows, :-1] = totals[:, :-1] / totals[:, -1:]
        drawn[rows, -1] = _medians(ordered, np.take(times, group, axis=1))
    return drawn


def _medians(
    ordered: Int[np.ndarray, " queries"], times: Int[np.ndarray, "draws queries"]
) -> Float[np.ndarray, " draws"]:
    """The median of ranks in order for each draw, in which each is as often as it was drawn."""
    ends = times.ravel().cumsum()  # of all draws, one after the other
    sizes = times.sum(axis=1)
    starts = sizes.cumsum() - sizes
    middle = np.stack([starts + (sizes - 1) // 2, starts + sizes // 2], axis=1)
    return ordered[np.searchsorted(ends, middle, side="right") % len(ordered)].mean(axis=1)


def intervals_of(drawn: Float[np.ndarray, "samples scores"]) -> dict[str, list[float]]:
    """The middle 95 % of each score's draws."""
    bounds = np.percentile(drawn, [2.5, 97.5], axis=0)
    return {name: [float(low), float(high)] for name, low, high in zip(SCORES, *bounds, strict=True)}
