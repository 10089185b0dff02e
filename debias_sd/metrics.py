"""Retrieval metrics on plain arrays: similarities in, ranks out; recall, mean and median of ranks.

A rank is 1 for the best. A tie counts against us: a model that gives all pairs one score must not look perfect. For an
image with several captions the best rank over them counts (arXiv 2602.22419 follows this protocol). Worked example,
two queries and three candidates, right ones 0 and 2: `[[9, 1, 1], [5, 7, 6]]` has ranks 1 and 2, R@1 50 %.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

BLOCK = 1 << 24  # similarities in memory at a time: 64 MiB in float32


class RetrievalRanks(NamedTuple):
    """Ranks of both directions: `t2i` one of each caption, `i2t` one of each image that has a caption."""

    t2i: Int[np.ndarray, " captions"]
    i2t: Int[np.ndarray, " images"]


def ranks_of(
    similarity: Float[np.ndarray, "queries candidates"], targets: Int[np.ndarray, " queries"]
) -> Int[np.ndarray, " queries"]:
    """Return the rank of candidate `targets[i]` for each query i, ties against us.

    >>> ranks_of(np.array([[9.0, 1.0, 1.0], [5.0, 7.0, 6.0]]), np.array([0, 2])).tolist()
    [1, 2]
    """
    owners = np.arange(similarity.shape[1])
    return best_ranks_of(similarity, owners, targets)


def best_ranks_of(
    similarity: Float[np.ndarray, "queries candidates"],
    owners: Int[np.ndarray, " candidates"],
    targets: Int[np.ndarray, " queries"],
) -> Int[np.ndarray, " queries"]:
    """Return for each query i the best rank among the candidates whose owner is `targets[i]`.

    Several right candidates do not push each other down: the rank is one more than the wrong candidates that score as
    high as the best right one. Raises ValueError for similarities that are not finite (a NaN compares as "lower" and
    would be ranked first) and for a query without a right candidate.

    >>> best_ranks_of(np.array([[3.0, 9.0, 5.0]]), np.array([0, 1, 0]), np.array([0])).tolist()
    [2]
    """
    if not np.isfinite(similarity).all():
        raise ValueError("similarities hold NaN or infinity, ranks need finite numbers; check the encoder's features.")
    right = owners[None, :] == targets[:, None]
    if not right.any(axis=1).all():
        query = int(np.flatnonzero(~right.any(axis=1))[0])
        raise ValueError(
            f"query {query} asks for {int(targets[query])} and no candidate belongs to it, each query needs one; "
            "drop the query or add its candidate."
        )
    best = np.where(right, similarity, -np.inf).max(axis=1, keepdims=True)
    return 1 + ((similarity >= best) & ~right).sum(axis=1)


def retrieval_ranks(
    image_features: Float[np.ndarray, "images dim"],
    caption_features: Float[np.ndarray, "captions dim"],
    image_of_caption: Int[np.ndarray, " captions"],
    *,
    chunk: int = 1024,
    block: int = BLOCK,
) -> RetrievalRanks:
    """Return the ranks of both directions for normalised features, as `ranks_of` and `best_ranks_of` define them.

    At most `chunk` queries and `block` similarities at a time are in memory: 64 MiB for pools of any size, where all
    of Flickr30k's would be 18 GiB. Nothing is sorted: a rank is a count. Images without a caption stay among the
    candidates of text to image and are no query of image to text. ValueError for features that are not finite.
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
        raise ValueError("similarities hold NaN or infinity, ranks need finite numbers; check the encoder's features.")


def recall_at(ranks: Int[np.ndarray, " queries"], k: int) -> float:
    """Return the share of queries with a rank of `k` or better, 0 to 1; ValueError without queries."""
    return float((_some(ranks) <= k).mean())


def mean_rank(ranks: Int[np.ndarray, " queries"]) -> float:
    """Return the mean rank; ValueError without queries."""
    return float(_some(ranks).mean())


def median_rank(ranks: Int[np.ndarray, " queries"]) -> float:
    """Return the median rank; ValueError without queries."""
    return float(np.median(_some(ranks)))


def _some(ranks: Int[np.ndarray, " queries"]) -> Int[np.ndarray, " queries"]:
    """Return `ranks`, or raise ValueError when there are none: a mean of nothing is no score."""
    if ranks.size == 0:
        raise ValueError("there are 0 ranks, a metric needs at least 1 query; check that the records were found.")
    return ranks
