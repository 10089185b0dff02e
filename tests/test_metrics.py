"""Metrics: matrices that a human can rank by eye."""

import numpy as np
import pytest

from debias_sd.measure.retrieval.ranks import (
    best_ranks_of,
    mean_rank,
    median_rank,
    ranks_of,
    recall_at,
    retrieval_ranks,
)

# Rows are 4 captions, columns 3 images.
SIMILARITY = np.array([[9.0, 1.0, 2.0], [4.0, 6.0, 5.0], [3.0, 7.0, 8.0], [5.0, 4.0, 3.0]])
IMAGE_OF_CAPTION = np.array([0, 0, 2, 1])


def test_text_to_image_by_hand() -> None:
    assert ranks_of(SIMILARITY, IMAGE_OF_CAPTION).tolist() == [1, 3, 1, 2]


def test_image_to_text_by_hand() -> None:
    """Image 0 has captions 0 and 1; image 1 has caption 3 (behind 7 and 6); image 2 has caption 2."""
    assert best_ranks_of(SIMILARITY.T, IMAGE_OF_CAPTION, np.arange(3)).tolist() == [1, 3, 1]


def test_right_candidates_do_not_push_each_other_down() -> None:
    similarity = np.array([[9.0, 8.0, 7.0, 6.0]])
    assert best_ranks_of(similarity, np.array([5, 0, 0, 0]), np.array([0])).tolist() == [2]


def test_ties_count_against_us() -> None:
    assert ranks_of(np.zeros((3, 5)), np.array([0, 2, 4])).tolist() == [5, 5, 5]
    assert best_ranks_of(np.zeros((1, 4)), np.array([0, 0, 1, 1]), np.array([0])).tolist() == [3]


def test_both_directions_from_features_in_chunks() -> None:
    rng = np.random.default_rng(0)
    images, captions = rng.normal(size=(7, 16)), rng.normal(size=(19, 16))
    owners = np.concatenate([np.arange(7), rng.integers(0, 7, 12)])
    similarity = captions @ images.T
    for chunk in (1, 3, 100):
        ranks = retrieval_ranks(images, captions, owners, chunk=chunk)
        right = similarity[np.arange(19), owners][:, None]
        assert ranks.t2i.tolist() == (1 + (similarity > right).sum(axis=1)).tolist()
        orders = [np.argsort(-similarity[:, image]) for image in range(7)]
        expected = [1 + int(np.flatnonzero(owners[order] == image)[0]) for image, order in enumerate(orders)]
        assert ranks.i2t.tolist() == expected


def test_an_image_without_caption_is_candidate_but_no_query() -> None:
    images, captions = np.eye(3), np.array([[0.5, 0.0, 0.9], [0.0, 1.0, 0.0]])
    ranks = retrieval_ranks(images, captions, np.array([0, 1]))
    assert ranks.t2i.tolist() == [2, 1]
    assert ranks.i2t.tolist() == [1, 1]


def test_summaries() -> None:
    ranks = np.array([1, 3, 1, 2, 11])
    assert recall_at(ranks, 1) == pytest.approx(0.4)
    assert recall_at(ranks, 3) == pytest.approx(0.8)
    assert recall_at(ranks, 10) == pytest.approx(0.8)
    assert mean_rank(ranks) == pytest.approx(3.6)
    assert median_rank(ranks) == pytest.approx(2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_similarities_that_are_not_finite_are_refused(bad: float) -> None:
    similarity = SIMILARITY.copy()
    similarity[1, 0] = bad
    with pytest.raises(ValueError, match="similarities hold NaN or infinity"):
        ranks_of(similarity, IMAGE_OF_CAPTION)


def test_a_query_without_candidate_is_refused() -> None:
    with pytest.raises(ValueError, match="query 1 asks for 7 and no candidate belongs to it"):
        best_ranks_of(np.zeros((2, 3)), np.array([0, 1, 2]), np.array([0, 7]))
    with pytest.raises(ValueError, match="query 0 asks for -1"):
        ranks_of(np.zeros((1, 3)), np.array([-1]))


@pytest.mark.parametrize("metric", [lambda ranks: recall_at(ranks, 1), mean_rank, median_rank])
def test_no_ranks_are_no_score(metric) -> None:
    with pytest.raises(ValueError, match="there are 0 ranks"):
        metric(np.array([], dtype=np.int64))
