"""SigLIP's loss: against open_clip's, in parts, and in the place of the contrastive one for two captions."""

import numpy as np
import pytest
import torch
from open_clip.loss import SigLipLoss
from torch.nn.functional import normalize

from debias_sd.losses import principal_components, sigmoid_loss, two_caption_loss

SCALE, BIAS = torch.tensor(2.3), torch.tensor(-10.0)


def features(*seeds, count=12, width=16):
    made = [torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return [normalize(rows, dim=-1).requires_grad_() for rows in made]


def gradients(loss, leaves):
    return torch.autograd.grad(loss, leaves)


@pytest.mark.parametrize("count", [1, 12])
def test_it_is_open_clips(count):
    leaves = [*features(0, 1, count=count), SCALE.clone().requires_grad_(), BIAS.clone().requires_grad_()]
    ours = sigmoid_loss(*leaves)
    theirs = SigLipLoss()(leaves[0], leaves[1], leaves[2].exp(), leaves[3])
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(gradients(ours, leaves), gradients(theirs, leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_it_is_a_sum_over_texts_and_a_mean_over_images_in_float32():
    image, text = (rows.detach().double().numpy() for rows in features(0, 1))
    logits = np.exp(SCALE.item()) * image @ text.T + BIAS.item()
    signs = 2 * np.eye(12) - 1
    wanted = np.log1p(np.exp(-signs * logits)).sum(axis=1).mean()
    assert sigmoid_loss(*features(0, 1), SCALE, BIAS).item() == pytest.approx(wanted, rel=1e-5)
    image, text = features(0, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = sigmoid_loss(image.bfloat16(), text.bfloat16(), SCALE, BIAS)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, sigmoid_loss(image.bfloat16().float(), text.bfloat16().float(), SCALE, BIAS))


@pytest.mark.parametrize("parts", [2, 4])
def test_the_mean_of_equal_parts_is_the_whole(parts):
    leaves = [*features(0, 1), SCALE.clone().requires_grad_(), BIAS.clone().requires_grad_()]
    whole, size = sigmoid_loss(*leaves), 12 // parts
    rows = [slice(start, start + size) for start in range(0, 12, size)]
    apart = torch.stack([sigmoid_loss(*leaves, rows=part) for part in rows])
    torch.testing.assert_close(apart.mean(), whole)
    assert apart.std() > 1e-3
    for one, other in zip(gradients(apart.mean(), leaves), gradients(whole, leaves), strict=True):
        torch.testing.assert_close(one, other)


def test_two_captions_are_judged_by_it_and_smoothing_is_refused():
    image, long, short = features(0, 1, 2)
    loss = two_caption_loss(image, long, short, SCALE, logit_bias=BIAS, short_weight=0.1, rank=4)
    torch.testing.assert_close(loss.long, sigmoid_loss(image, long, SCALE, BIAS))
    torch.testing.assert_close(loss.short, sigmoid_loss(principal_components(image, rank=4), short, SCALE, BIAS))
    torch.testing.assert_close(loss.total, 0.1 * loss.short + 0.9 * loss.long)
    with pytest.raises(ValueError, match="^label_smoothing is 0.1, SigLIP's sigmoid loss has no classes to smooth"):
        two_caption_loss(image, long, short, SCALE, logit_bias=BIAS, label_smoothing=0.1)
