"""Bootstrap intervals of retrieval scores: the same as drawing pictures, with all their captions, one by one."""

import numpy as np
import pytest

from debias_sd.measure.retrieval.scores import SCORES, draw_scores, intervals_of, scores_of


@pytest.mark.parametrize("pictures", [1, 4, 7])
def test_scores_of_a_draw_are_those_of_its_pictures_written_out(pictures):
    rng = np.random.default_rng(pictures)
    owners = np.concatenate([np.arange(pictures), rng.integers(0, pictures, 3 * pictures)])  # one caption and more
    ranks = rng.integers(1, 30, len(owners))
    found = draw_scores(ranks, 10 * owners, samples=40, seed=5)  # numbers of pictures may have gaps
    again = np.random.default_rng(5)
    for row in found:
        drawn = np.concatenate([ranks[owners == picture] for picture in again.integers(0, pictures, pictures)])
        expected = scores_of(drawn)
        np.testing.assert_allclose(row, [expected[name] for name in SCORES])


def test_the_interval_is_the_middle_of_the_draws_and_has_every_score():
    drawn = draw_scores(np.array([1, 1, 2, 40]), np.arange(4), samples=500)
    found = intervals_of(drawn)
    assert set(found) == set(scores_of(np.array([1]))) == {"r1", "r5", "r10", "mean_rank", "median_rank"}
    assert found["median_rank"] == np.percentile(drawn[:, SCORES.index("median_rank")], [2.5, 97.5]).tolist()
    assert found["median_rank"][0] == 1
    assert found["median_rank"][1] > 2
    assert intervals_of(draw_scores(np.ones(9, int), np.arange(9), samples=9))["median_rank"] == [1, 1]
