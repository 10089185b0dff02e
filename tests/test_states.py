"""Windows to joined states: which windows are read, in which order they are joined, and how weights change them."""

import pytest
import torch

from debias_sd.prompts.states import ROWS, Encoded, encode_windows, weigh

FILL = (9, 0, 0)


class Reads:
    """An encoder of one number a token, which remembers the batches it was given."""

    def __init__(self, *, states=True, pooled=True):
        self.batches, self._states, self._pooled = [], states, pooled

    def __call__(self, ids):
        self.batches.append([tuple(row) for row in ids.tolist()])
        return Encoded(ids[..., None].float() if self._states else None, ids.float() if self._pooled else None)


def test_one_window_stands_as_it_is_and_one_forward_reads_a_few():
    read = Reads()
    sides = [[[(1, 2, 0)], [(1, 2, 0)]], [[FILL], [FILL]]]
    wanted, unwanted = encode_windows(read, sides, fill=FILL, count=1)
    assert read.batches == [[(1, 2, 0), (1, 2, 0)], [FILL, FILL]]
    assert wanted.states.shape == (2, 3, 1)
    assert unwanted.pooled.tolist() == [list(FILL)] * 2
    read = Reads()
    windows = [(number, 0, 0) for number in range(10, 10 + 3 * ROWS + 1)]
    encode_windows(read, [[windows]], fill=FILL, count=len(windows))
    assert max(len(batch) for batch in read.batches) == ROWS
    assert sum(len(batch) for batch in read.batches) == len(windows)


def test_of_several_windows_each_different_one_is_read_once():
    read = Reads()
    one, two, three = (1, 0, 0), (2, 0, 0), (3, 0, 0)
    sides = [[[one, two, three], [three]], [[FILL], [one]]]
    wanted, unwanted = encode_windows(read, sides, fill=FILL, count=3)
    assert sorted(row for batch in read.batches for row in batch) == sorted([one, two, three, FILL])
    assert wanted.states[..., 0].tolist() == [[1, 0, 0, 2, 0, 0, 3, 0, 0], [3, 0, 0, 9, 0, 0, 9, 0, 0]]
    assert unwanted.states[..., 0].tolist() == [[9, 0, 0, 9, 0, 0, 9, 0, 0], [1, 0, 0, 9, 0, 0, 9, 0, 0]]
    assert wanted.pooled.tolist() == [[1, 0, 0], [3, 0, 0]]


def test_an_encoder_that_only_pools_reads_the_windows_that_it_pools():
    sides = [[[(1, 0, 0), (3, 0, 0)], [(5, 0, 0)]]]
    first = Reads(states=False)
    (encoded,) = encode_windows(first, sides, fill=FILL, count=2)
    assert first.batches == [[(1, 0, 0), (5, 0, 0)]]
    assert encoded.states is None
    assert encoded.pooled[:, 0].tolist() == [1, 5]
    (encoded,) = encode_windows(Reads(states=False), sides, fill=FILL, count=2, pooled="mean")
    assert encoded.pooled[:, 0].tolist() == [2, 5]


def states_of(*, mean, dtype=torch.float32, shape=(2, 6, 8)):
    torch.manual_seed(0)
    return (torch.randn(shape) + mean).to(dtype)


def test_weights_multiply_and_each_window_keeps_its_mean_unless_it_is_zero():
    states = states_of(mean=0.5)
    weights = torch.ones(2, 6)
    weights[0, 1], weights[1, 4] = 1.5, 0.25
    found = weigh(states, weights, window=3)
    for text, window in ((0, 0), (0, 1), (1, 0), (1, 1)):
        here = slice(3 * window, 3 * window + 3)
        plain, factor = states[text, here], weights[text, here][:, None]
        by_hand = plain * factor * (plain.mean() / (plain * factor).mean())
        torch.testing.assert_close(found[text, here], by_hand)
        if (factor == 1).all():
            assert torch.equal(found[text, here], plain)
    torch.testing.assert_close(found.reshape(2, 2, -1).mean(dim=-1), states.reshape(2, 2, -1).mean(dim=-1))
    states = states_of(mean=0.0)
    states -= states.reshape(2, 2, 3, 8).mean(dim=(2, 3)).repeat_interleave(3, dim=1)[:, :, None]
    weights = torch.ones(2, 6)
    weights[:, 2] = 1.4
    torch.testing.assert_close(weigh(states, weights, window=3), states * weights[..., None])
    states = states_of(mean=0.5)
    weights = torch.full((2, 6), -1.0)
    torch.testing.assert_close(weigh(states, weights, window=3), -states)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("weight", [0.0, -1.0, 10.0, -10.0, 1.1])
@pytest.mark.parametrize("mean", [0.0, 0.5, -0.1, 1e-4])
def test_states_stay_finite(dtype, weight, mean):
    states = states_of(mean=mean, dtype=dtype, shape=(1, 77, 64))
    states[0, 0] = 3e4  # the start token's state is far larger than the others in real encoders
    for some in (slice(0, 77), slice(1, 20)):
        weights = torch.ones(1, 77)
        weights[:, some] = weight
        found = weigh(states, weights, window=77)
        assert found.dtype == dtype
        assert torch.isfinite(found).all()
