"""Retrieval metrics on plain arrays: similarities in, ranks out; recall, mean and median of ranks.

A rank is 1 for the best. A tie counts against us: a model that gives all pairs one score must not look perfect. For an
image with several captions the best rank over them counts (arXiv 2602.22419 follows this protocol). Worked example,
two queries and three candidates, right ones 0 and 2: `[[9, 1, 1], [5, 7, 6]]` has ranks 1 and 2, R@1 50 %.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


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
) -> RetrievalRanks:
    """Return the ranks of both directions for normalised features, `chunk` queries at a time to bound memory.

    Images without a caption stay among the candidates of text to image and are no query of image to text.
    """
    image_ids = np.arange(image_features.shape[0])
    captioned = np.unique(image_of_caption)
    t2i = [
        ranks_of(caption_features[at : at + chunk] @ image_features.T, image_of_caption[at : at + chunk])
        for at in range(0, caption_features.shape[0], chunk)
    ]
    i2t = [
        best_ranks_of(image_features[ids] @ caption_features.T, image_of_caption, image_ids[ids])
        for ids in np.array_split(captioned, max(1, -(-captioned.size // chunk)))
    ]
    return RetrievalRanks(t2i=np.concatenate(t2i), i2t=np.concatenate(i2t))


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
