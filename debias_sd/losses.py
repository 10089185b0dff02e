"""The training objective: contrastive loss (CLIP's, or SigLIP's), principal components of a batch, their weighted sum.

Source: DeBias-CLIP (arXiv 2602.22419): `L = short_weight * L_short + (1 - short_weight) * L_long`, short_weight 0.1.
`L_short` compares short captions with image features reduced to their 32 principal components in the batch
(Long-CLIP, arXiv 2403.15378, section 3.3). Long-CLIP itself adds the two losses 1:1 with label smoothing 0.1: that is
twice `two_caption_loss(..., short_weight=0.5, label_smoothing=0.1)`, a factor that AdamW does not see.

SigLIP (arXiv 2303.15343) judges every pair of a batch on its own, by a sigmoid: `sigmoid_loss`. The sum of the two
captions' losses is the same.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


class TwoCaptionLoss(NamedTuple):
    """`total` is what to minimise; `long` and `short` are its unweighted parts. Scalars, float32."""

    total: Float[Tensor, ""]
    long: Float[Tensor, ""]
    short: Float[Tensor, ""]


def at_least_float32(tensor: Tensor) -> Tensor:
    """Return `tensor` in float32 where its own type holds less; float64 stays: gradients are compared in it."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def contrastive_loss(
    image_features: Float[Tensor, "batch dim"],
    text_features: Float[Tensor, "batch dim"],
    logit_scale: Float[Tensor, ""],
    *,
    label_smoothing: float = 0.0,
    rows: slice | None = None,
) -> Float[Tensor, ""]:
    """Return the mean of the image-to-text and the text-to-image cross entropy; row i of both belongs together.

    Features come normalised (principal components excepted); `logit_scale` is the logarithm of the inverse
    temperature, as CLIP stores it. Computed in float32 at least, whatever autocast says: bfloat16 logits of 100 are
    0.5 apart.

    `rows` names the pairs whose loss is returned, each still contrasted with all: two logits matrices of
    [rows, batch] in place of one of [batch, batch]. The mean over processes with equal numbers of rows is the loss.
    """
    if rows is not None:
        return _loss_of_rows(image_features, text_features, logit_scale, label_smoothing=label_smoothing, rows=rows)
    with torch.autocast(image_features.device.type, enabled=False):
        scale = at_least_float32(logit_scale).exp()
        logits = scale * at_least_float32(image_features) @ at_least_float32(text_features).T
        targets = torch.arange(logits.shape[0], device=logits.device)
        to_text = F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
        to_image = F.cross_entropy(logits.T, targets, label_smoothing=label_smoothing)
        return (to_text + to_image) / 2


def _loss_of_rows(
    image: Tensor, text: Tensor, logit_scale: Tensor, *, label_smoothing: float, rows: slice
) -> Float[Tensor, ""]:
    with torch.autocast(image.device.type, enabled=False):
        image, text, scale = at_least_float32(image), at_least_float32(text), at_least_float32(logit_scale).exp()
        targets = torch.arange(len(image), device=image.device)[rows]
        to_text = F.cross_entropy(scale * image[rows] @ text.T, targets, label_smoothing=label_smoothing)
        to_image = F.cross_entropy(scale * text[rows] @ image.T, targets, label_smoothing=label_smoothing)
        return (to_text + to_image) / 2


def sigmoid_loss(
    image_features: Float[Tensor, "batch dim"],
    text_features: Float[Tensor, "batch dim"],
    logit_scale: Float[Tensor, ""],
    logit_bias: Float[Tensor, ""],
    *,
    rows: slice | None = None,
) -> Float[Tensor, ""]:
    """Return SigLIP's loss: for each image the sum over all texts of -log sigmoid(+-logit), mean over the images.

    The sign is + for row i with row i and - for any other; the logit is `exp(logit_scale) * cosine + logit_bias`.
    Scaled as in the paper's listing, in big_vision and in open_clip's `SigLipLoss`: sum over pairs by batch size, not
    the mean over pairs, so that the one match weighs as much in a large batch as in a small one. Float32 at least.

    `rows` names the images whose part is returned, each with all texts; see `contrastive_loss`.
    """
    rows = rows or slice(len(image_features))
    with torch.autocast(image_features.device.type, enabled=False):
        image, text = at_least_float32(image_features)[rows], at_least_float32(text_features)
        logits = at_least_float32(logit_scale).exp() * image @ text.T + at_least_float32(logit_bias)
        places = torch.arange(len(text), device=text.device)
        signs = 2.0 * (places[rows][:, None] == places) - 1.0
        return -F.logsigmoid(signs * logits).sum() / len(image)


class _LeadingComponents(torch.autograd.Function):
    """A matrix to its best approximation of a given rank: the first `rank` terms of its singular value decomposition.

    The gradient equals that of `torch.linalg.svd` where that one is defined. It is written out because the gradient of
    the factors divides by the gap between any two singular values, so that two zeros (images that occur twice in a
    batch) make it NaN; the gradient of the sum divides only by gaps between kept and dropped values.
    """

    @staticmethod
    def forward(ctx, matrix: Tensor, rank: int) -> Tensor:
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        ctx.save_for_backward(left, values, right)
        ctx.rank = rank
        return (left[:, :rank] * values[:rank]) @ right[:rank]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        left, values, right = ctx.saved_tensors
        rank = ctx.rank
        kept, dropped = values[:rank, None], values[None, rank:]
        gap = (kept - dropped) * (kept + dropped)
        # A tie across the cut has no derivative: tied terms pass their gradient on as if all were kept.
        tied = gap <= 16 * torch.finfo(values.dtype).eps * values[0] ** 2
        gap = gap.masked_fill(tied, 1.0)
        own = (kept**2 / gap).masked_fill(tied, 1.0)
        crossed = (kept * dropped / gap).masked_fill(tied, 0.0)

        inner = left.T @ grad @ right.T
        mixed = torch.zeros_like(inner)
        mixed[:rank, :rank] = inner[:rank, :rank]
        mixed[:rank, rank:] = own * inner[:rank, rank:] + crossed * inner[rank:, :rank].T
        mixed[rank:, :rank] = own.T * inner[rank:, :rank] + crossed.T * inner[:rank, rank:].T
        # What lies outside the decomposition on one side moves with the kept terms of the other side.
        outside_left = (grad @ right[:rank].T - left @ inner[:, :rank]) @ right[:rank]
        outside_right = left[:, :rank] @ (left[:, :rank].T @ grad - inner[:rank] @ right)
        return left @ mixed @ right + outside_left + outside_right, None


def principal_components(features: Float[Tensor, "batch dim"], *, rank: int = 32) -> Float[Tensor, "batch dim"]:
    """Return `features` rebuilt from their mean and their first `rank` principal components in this batch.

    Float32 at least, not renormalised, with gradient through the components as in Long-CLIP's code. A centred batch has
    at most `batch - 1` components: where `rank` covers them all, the features come back as they are.

    Raises ValueError when `rank` is below 1.
    """
    if rank < 1:
        raise ValueError(f"rank is {rank}, at least 1 component is needed; use 32 as in the paper.")
    with torch.autocast(features.device.type, enabled=False):
        features = at_least_float32(features)
        if rank >= min(features.shape[0] - 1, features.shape[1]):
            return features
        mean = features.mean(dim=0)
        return _LeadingComponents.apply(features - mean, rank) + mean


def pair_loss(
    image_features: Float[Tensor, "batch dim"],
    text_features: Float[Tensor, "batch dim"],
    logit_scale: Float[Tensor, ""],
    *,
    label_smoothing: float = 0.0,
    logit_bias: Float[Tensor, ""] | None = None,
    rows: slice | None = None,
) -> Float[Tensor, ""]:
    """Return `sigmoid_loss` where there is a `logit_bias`, else `contrastive_loss`.

    Raises ValueError for label smoothing of the sigmoid loss.
    """
    if logit_bias is None:
        options = {"label_smoothing": label_smoothing, "rows": rows}
        return contrastive_loss(image_features, text_features, logit_scale, **options)
    if label_smoothing:
        raise ValueError(
            f"label_smoothing is {label_smoothing}, SigLIP's sigmoid loss has no classes to smooth; set it to 0."
        )
    return sigmoid_loss(image_features, text_features, logit_scale, logit_bias, rows=rows)


def keep_local(features: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
    """Return `features` as they are: the gather of a single process."""
    return features


def two_caption_loss(
    image_features: Float[Tensor, "local dim"],
    long_features: Float[Tensor, "local dim"],
    short_features: Float[Tensor, "local dim"],
    logit_scale: Float[Tensor, ""],
    *,
    short_weight: float = 0.1,
    rank: int = 32,
    local_components: bool = False,
    label_smoothing: float = 0.0,
    logit_bias: Float[Tensor, ""] | None = None,
    gather: Callable[[Tensor], Tensor] = keep_local,
    rows: slice | None = None,
) -> TwoCaptionLoss:
    """Return the DeBias-CLIP loss of a batch of images, each with a long and a short caption.

    With a `logit_bias` both parts are SigLIP's `sigmoid_loss`, which has no classes to smooth; the rest is the same.

    Features come as the towers give them, not normalised. `gather` takes the `[local, dim]` features of this process
    and returns `[global, dim]` of all, in one order on every process and **with gradient**: without it the loss is
    the same and the gradient is wrong. Components are those of the gathered batch, so that the result does not depend
    on the number of processes; with `local_components` they are those of each process's own images, gathered after, as
    the papers leave it open. Every process returns the loss of the whole batch, and averaging the gradients over
    processes (as DistributedDataParallel does) gives the gradient of that loss. With `rows`, this process's own in the
    gathered batch, it returns their part of the loss (see `contrastive_loss`): the mean over processes and the averaged
    gradients are the same, and no process holds a matrix of the whole batch by the whole batch.

    Raises ValueError when `short_weight` is outside 0 to 1, and for label smoothing of the sigmoid loss.
    """
    if not 0 <= short_weight <= 1:
        raise ValueError(f"short_weight is {short_weight} but must be from 0 to 1; the paper uses 0.1.")
    own_image, own_long, own_short = (
        F.normalize(at_least_float32(features), dim=-1) for features in (image_features, long_features, short_features)
    )
    image, long, short = (gather(features) for features in (own_image, own_long, own_short))
    options = {"label_smoothing": label_smoothing, "logit_bias": logit_bias, "rows": rows}
    long_loss = pair_loss(image, long, logit_scale, **options)
    if local_components:
        reduced = gather(principal_components(own_image, rank=rank))
    else:
        reduced = principal_components(image, rank=rank)
    short_loss = pair_loss(reduced, short, logit_scale, **options)
    total = short_weight * short_loss + (1 - short_weight) * long_loss
    return TwoCaptionLoss(total=total, long=long_loss, short=short_loss)
