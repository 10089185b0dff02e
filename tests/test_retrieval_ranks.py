"""Ranks, recalls and intervals: by eye, by a sort, by torchmetrics, and by drawing pictures one by one."""

import numpy as np
import pytest
import torch

from debias_sd.measure.ranks import BLOCK, SCORES, draw_scores, family_share, intervals_of, retrieval_ranks, scores_of

# Of torchmetrics 1.9.0 (torch 2.14.1, NumPy 2.4.6, float32) on `pools(7)`, for where it is not installed. Its recall
# counts every right candidate; of pictures with several captions the protocol asks for the best: its hit rate.
BY_TORCHMETRICS = {"t2i": {"r1": 63, "r5": 92, "r10": 97}, "i2t": {"r1": 70, "r5": 97.5, "r10": 97.5}}
MRR_BY_TORCHMETRICS = {"t2i": 0.772392571, "i2t": 0.819062531}


def ranks_by_eye(similarity: list[list[float]], owners: list[int]) -> tuple[list[int], list[int]]:
    """The ranks of a matrix captions x images: images are the unit vectors."""
    captions = np.array(similarity, dtype=float)
    return tuple(rank.tolist() for rank in retrieval_ranks(np.eye(captions.shape[1]), captions, np.array(owners)))


@pytest.mark.parametrize(
    ("similarity", "owners", "t2i", "i2t"),
    [
        # Image 0 has captions 0 and 1; image 1 has caption 3, behind 7 and 6; image 2 has caption 2.
        ([[9, 1, 2], [4, 6, 5], [3, 7, 8], [5, 4, 3]], [0, 0, 2, 1], [1, 3, 1, 2], [1, 3, 1]),
        ([[9, 1], [8, 0], [7, 0], [6, 0]], [1, 0, 0, 0], [2, 1, 1, 1], [2, 1]),  # right ones push none of theirs down
        ([[0, 0, 0]] * 4, [0, 0, 1, 2], [3, 3, 3, 3], [3, 4, 4]),  # ties count against us
        ([[0.5, 0.0, 0.9], [0.0, 1.0, 0.0]], [0, 1], [2, 1], [1, 1]),  # image 2 has no caption: candidate, no query
    ],
    ids=["several captions", "right ones together", "ties", "no caption"],
)
def test_ranks_by_eye(similarity, owners, t2i, i2t):
    assert ranks_by_eye(similarity, owners) == (t2i, i2t)


@pytest.mark.parametrize("size", [{"block": 1}, {"block": 50}, {"block": 1000}, {"block": BLOCK}, {"chunk": 3}])
def test_ranks_in_blocks_are_those_of_the_whole_matrix(size):
    rng = np.random.default_rng(1)
    images = rng.integers(-2, 3, (23, 6)).astype(np.float32)  # whole numbers: many ties
    captions = rng.integers(-2, 3, (71, 6)).astype(np.float32)
    owners = np.concatenate([np.arange(23), rng.integers(0, 23, 48)])[rng.permutation(71)]
    found = retrieval_ranks(images, captions, owners, **size)
    similarity, is_right = captions @ images.T, owners[:, None] == np.arange(23)
    for ranks, scores, right in ((found.t2i, similarity, is_right), (found.i2t, similarity.T, is_right.T)):
        best = np.where(right, scores, -np.inf).max(axis=1, keepdims=True)
        assert ranks.tolist() == (1 + ((scores >= best) & ~right).sum(axis=1)).tolist()


def test_ranking_all_of_flickr30k_takes_a_block_and_no_matrix():
    """By arithmetic: the largest array of similarities is a block, whatever the pool."""
    shapes = []

    class Watched(np.ndarray):
        def __matmul__(self, other):
            product = np.asarray(self) @ np.asarray(other)
            shapes.append(product.size)
            return product

    images, captions = (np.ones((count, 2), np.float32).view(Watched) for count in (300, 1500))
    retrieval_ranks(images, captions, np.repeat(np.arange(300), 5), block=4000)
    assert sum(shapes) == 2 * 300 * 1500
    assert max(shapes) <= 4000
    # similarities and their comparison, features of 768 numbers of both pools, and their order
    peak = BLOCK * (4 + 1) + (31_014 + 155_070) * 768 * 4 + 155_070 * 8 * 4
    assert peak < 2e9


def test_scores_by_hand_and_near_twins_count_ties_against_us():
    eye, owners = np.eye(4, dtype=np.float32), np.arange(4)
    assert family_share(eye, eye, owners, size=4) == 100
    assert family_share(eye, np.ones((4, 4), np.float32), owners, size=4) == 0
    assert family_share(eye, eye[[0, 1, 3, 2]], owners, size=4) == 50
    assert family_share(eye, eye[[0, 1, 3, 2]], owners, size=2) == 50
    far = np.array([[1, 0, 0, 2.0]], np.float32)  # nearest to a picture of another family
    assert family_share(eye, far, np.array([0]), size=2) == 100
    found = scores_of(np.array([1, 3, 1, 2, 11]))
    assert found == pytest.approx({"r1": 40, "r5": 80, "r10": 80, "mean_rank": 3.6, "median_rank": 2})
    with pytest.raises(ValueError, match="there are 0 ranks"):
        scores_of(np.array([], dtype=np.int64))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_features_that_are_not_finite_are_refused(bad):
    features = np.eye(3)
    features[1, 0] = bad
    for pair in ((features, np.eye(3)), (np.eye(3), features)):
        with pytest.raises(ValueError, match="similarities hold NaN or infinity"):
            retrieval_ranks(*pair, np.arange(3))


def pools(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """40 pictures, 100 captions that lean towards their own, and whose they are; every picture has one at least."""
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((40, 8), dtype=np.float32)
    owners = np.sort(np.concatenate([np.arange(40), rng.integers(0, 40, 60)]))
    captions = rng.standard_normal((100, 8), dtype=np.float32) + 1.2 * images[owners]
    images, captions = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, captions))
    return images, captions.astype(np.float32), owners


@pytest.mark.parametrize("way", ["t2i", "i2t"])
def test_recalls_are_those_that_torchmetrics_gave(way):
    ranks = getattr(retrieval_ranks(*pools(7)), way)
    assert {name: scores_of(ranks)[name] for name in ("r1", "r5", "r10")} == pytest.approx(BY_TORCHMETRICS[way])
    assert (1 / ranks).mean() == pytest.approx(MRR_BY_TORCHMETRICS[way], abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_recalls_are_those_of_torchmetrics(seed):
    retrieval = pytest.importorskip("torchmetrics.retrieval")
    images, captions, owners = pools(seed)
    ranks = retrieval_ranks(images, captions, owners)
    similarity = torch.from_numpy(captions @ images.T)
    right = torch.from_numpy(owners[:, None] == np.arange(len(images)))
    for found, metric, scores, wanted in (
        (ranks.t2i, retrieval.RetrievalRecall, similarity, right),
        (ranks.i2t, retrieval.RetrievalHitRate, similarity.T, right.T),
    ):
        queries = torch.arange(len(scores)).repeat_interleave(scores.shape[1])
        for k in (1, 5, 10):
            value = metric(top_k=k)(scores.flatten(), wanted.flatten(), indexes=queries).item()
            assert scores_of(found)[f"r{k}"] == pytest.approx(100 * value, abs=1e-4)


@pytest.mark.parametrize("block", [1, 60, 1 << 18])
@pytest.mark.parametrize("pictures", [1, 4, 7])
def test_scores_of_a_draw_are_those_of_its_pictures_written_out(pictures, block, monkeypatch):
    monkeypatch.setattr("debias_sd.measure.ranks.DRAWN", block)
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
    assert set(found) == set(scores_of(np.array([1])))
    assert found["median_rank"] == np.percentile(drawn[:, SCORES.index("median_rank")], [2.5, 97.5]).tolist()
    assert found["median_rank"][0] == 1
    assert found["median_rank"][1] > 2
    assert intervals_of(draw_scores(np.ones(9, int), np.arange(9), samples=9))["median_rank"] == [1, 1]
