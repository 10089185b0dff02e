"""The ranks against torchmetrics' retrieval metrics on random data, and numbers of one real run of it.

Its recall counts every right candidate; for pictures with several captions the paper's protocol asks for the best one,
which is its hit rate. Where it is not installed the numbers below are what is left: torchmetrics 1.9.0, torch 2.14.1,
NumPy 2.4.6, float32, the data of `pools(7)`.
"""

import numpy as np
import pytest
import torch

from debias_sd.measure.retrieval.ranks import recall_at, retrieval_ranks

BY_TORCHMETRICS = {
    "t2i": {1: 0.63, 5: 0.92, 10: 0.97},
    "i2t": {1: 0.70, 5: 0.975, 10: 0.975},
}
MRR_BY_TORCHMETRICS = {"t2i": 0.772392571, "i2t": 0.819062531}


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
    assert {k: recall_at(ranks, k) for k in (1, 5, 10)} == BY_TORCHMETRICS[way]
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
            assert recall_at(found, k) == pytest.approx(value, abs=1e-6)
