"""Losses: against Long-CLIP's golden values, an independent reference, and two processes against one."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch import Tensor, nn

from debias_sd.losses import contrastive_loss, principal_components, two_caption_loss

GOLDEN = Path(__file__).parents[2] / "shared" / "golden" / "longclip-loss.safetensors"
INPUTS = ("image_features", "long_features", "short_features", "logit_scale")
GRADIENTS = ("grad_image", "grad_long", "grad_short", "grad_logit_scale")


def random_features(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def golden() -> dict[str, Tensor]:
    if not GOLDEN.is_file():
        pytest.skip("the golden values of Long-CLIP's loss lie outside the repository and are not here")
    return load_file(GOLDEN)


def test_golden_values_gradients_and_components(golden: dict[str, Tensor]) -> None:
    """Long-CLIP adds both losses 1:1: twice ours at short_weight 0.5."""
    inputs = [golden[name].clone().requires_grad_() for name in INPUTS]
    loss = two_caption_loss(*inputs, short_weight=0.5, rank=32, label_smoothing=0.1)
    (2 * loss.total).backward()
    torch.testing.assert_close(loss.long, golden["loss_long"])
    torch.testing.assert_close(loss.short, golden["loss_short"])
    for tensor, name in zip(inputs, GRADIENTS, strict=True):
        torch.testing.assert_close(tensor.grad, golden[name], rtol=1e-4, atol=1e-7)
    normalised = nn.functional.normalize(golden["image_features"], dim=-1)
    torch.testing.assert_close(
        principal_components(normalised, rank=32), golden["pca_image_features"], rtol=0, atol=2e-6
    )


def reference_components(features: np.ndarray, rank: int) -> np.ndarray:
    """Components as eigenvectors of the covariance, not by the decomposition that the code uses."""
    mean = features.mean(axis=0)
    _, vectors = np.linalg.eigh((features - mean).T @ (features - mean))
    basis = vectors[:, -rank:]
    return (features - mean) @ basis @ basis.T + mean


def reference_contrastive(image: np.ndarray, text: np.ndarray, scale: float, smoothing: float) -> float:
    """The symmetric loss written as log-probabilities against a smoothed target matrix."""
    logits = np.exp(scale) * image @ text.T
    size = len(logits)
    target = (1 - smoothing) * np.eye(size) + smoothing / size
    total = 0.0
    for matrix in (logits, logits.T):
        shifted = matrix - matrix.max(axis=1, keepdims=True)
        total -= (target * (shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))).sum() / size
    return total / 2


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("short_weight", [0.0, 0.1, 1.0])
def test_against_the_reference(smoothing: float, short_weight: float) -> None:
    features = [random_features(48, 64, seed=seed) for seed in range(3)]
    loss = two_caption_loss(*features, torch.tensor(1.5), short_weight=short_weight, rank=8, label_smoothing=smoothing)
    image, long, short = (f.double().numpy() / np.linalg.norm(f.double().numpy(), axis=1)[:, None] for f in features)
    expected_long = reference_contrastive(image, long, 1.5, smoothing)
    expected_short = reference_contrastive(reference_components(image, 8), short, 1.5, smoothing)
    assert loss.long.item() == pytest.approx(expected_long, rel=1e-5)
    assert loss.short.item() == pytest.approx(expected_short, rel=1e-5)
    assert loss.total.item() == pytest.approx(
        short_weight * expected_short + (1 - short_weight) * expected_long, rel=1e-5
    )


def test_perfect_pairs_have_no_loss_and_shuffled_ones_do_and_a_rank_is_in_range() -> None:
    image = torch.eye(6)
    assert contrastive_loss(image, image, torch.tensor(4.6)).item() == pytest.approx(0, abs=1e-6)
    assert contrastive_loss(image, image.roll(1, 0), torch.tensor(4.6)).item() > 50
    with pytest.raises(ValueError, match="rank is 0, at least 1 component"):
        principal_components(random_features(4, 8), rank=0)


def test_components_have_the_rank_keep_the_mean_and_are_not_renormalised() -> None:
    features = random_features(64, 96) + 3
    reduced = principal_components(features, rank=32)
    mean = reduced.mean(dim=0)
    torch.testing.assert_close(mean, features.mean(dim=0))
    assert torch.linalg.matrix_rank(reduced - mean, rtol=1e-4).item() == 32
    np.testing.assert_allclose(reduced.numpy(), reference_components(features.double().numpy(), 32), atol=1e-4)
    reduced = principal_components(nn.functional.normalize(random_features(64, 96), dim=-1), rank=4)
    assert reduced.norm(dim=-1).max().item() < 0.9
    features = random_features(34, 96)
    assert (principal_components(features, rank=32) - features).abs().max().item() > 1e-3


@pytest.mark.parametrize(("batch", "dim"), [(1, 96), (2, 96), (16, 96), (33, 96), (64, 32), (64, 8)])
def test_fewer_components_than_rank_change_nothing(batch: int, dim: int) -> None:
    features = random_features(batch, dim)
    assert torch.equal(principal_components(features, rank=32), features)


@pytest.mark.parametrize("shape", [(40, 64), (64, 40)])
def test_gradient_of_components_is_that_of_the_decomposition(shape: tuple[int, int]) -> None:
    features = random_features(*shape).requires_grad_()
    weight = random_features(*shape, seed=1)
    (principal_components(features, rank=8) * weight).sum().backward()

    plain = features.detach().double().requires_grad_()
    centred = plain - plain.mean(dim=0)
    basis = torch.linalg.svd(centred, full_matrices=False).Vh[:8]
    ((centred @ basis.T @ basis + plain.mean(dim=0)) * weight).sum().backward()
    torch.testing.assert_close(features.grad.double(), plain.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("distinct", [1, 4, 20])
def test_repeated_images_have_a_finite_gradient(distinct: int) -> None:
    """The plain gradient of the decomposition is NaN here, and one such batch would end a run."""
    features = random_features(distinct, 96).repeat(80 // distinct, 1).requires_grad_()
    text = random_features(80, 96, seed=1)
    two_caption_loss(features, text, text.flip(0), torch.tensor(2.0)).total.backward()
    assert features.grad.isfinite().all()
    assert 0 < features.grad.abs().max().item() < 1


def test_autocast_changes_nothing_and_half_precision_features_give_a_single_precision_loss() -> None:
    features = [random_features(48, 64, seed=seed) for seed in range(3)]
    plain = two_caption_loss(*features, torch.tensor(4.6), rank=8)
    with torch.autocast("cpu", torch.bfloat16):
        cast = two_caption_loss(*features, torch.tensor(4.6), rank=8)
    assert torch.equal(plain.total, cast.total)
    features = [random_features(40, 64, seed=seed).bfloat16() for seed in range(3)]
    assert two_caption_loss(*features, torch.tensor(4.6)).total.dtype == torch.float32


@pytest.mark.parametrize("weight", [-0.1, 1.5])
def test_weight_out_of_range(weight: float) -> None:
    features = random_features(4, 8)
    with pytest.raises(ValueError, match=f"short_weight is {weight} but must be from 0 to 1"):
        two_caption_loss(features, features, features, torch.tensor(1.0), short_weight=weight)


class Towers(nn.Module):
    """Three linear towers and a temperature, the same on every process."""

    def __init__(self) -> None:
        super().__init__()
        for seed, name in enumerate(("image", "long", "short")):
            tower = nn.Linear(12, 40, bias=False)
            tower.weight.data = random_features(40, 12, seed=seed)
            self.add_module(name, tower)
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def losses(self, inputs: Tensor, gather: Callable[[Tensor], Tensor]) -> Tensor:
        image, long, short = self.image(inputs[0]), self.long(inputs[1]), self.short(inputs[2])
        return two_caption_loss(image, long, short, self.logit_scale, rank=6, short_weight=0.3, gather=gather).total


class GatherWithGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, local: Tensor) -> Tensor:
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, local.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def gather_without_gradient(local: Tensor) -> Tensor:
    """Long-CLIP's first release: the own slice put back into a gather that carries no gradient."""
    parts = [torch.empty_like(local) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local.detach().contiguous())
    parts[dist.get_rank()] = local
    return torch.cat(parts)


GATHERS = {"with": GatherWithGradient.apply, "without": gather_without_gradient}


def batch_of_three() -> Tensor:
    return random_features(3, 16, 12, seed=9)


def run_process(rank: int, folder: str) -> None:
    """One of two gloo processes: loss and gradients, averaged as DistributedDataParallel does, into `folder`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    for name, gather in GATHERS.items():
        towers = Towers()
        loss = towers.losses(batch_of_three().chunk(2, dim=1)[rank], gather)
        loss.backward()
        for parameter in towers.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= 2
        gradients = {key: parameter.grad for key, parameter in towers.named_parameters()}
        torch.save({"loss": loss.detach(), **gradients}, f"{folder}/{name}-{rank}.pt")
    dist.barrier()
    # A finished gloo process can abort while the interpreter shuts down, and would be reported as failed.
    os._exit(0)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gloo")
    mp.spawn(run_process, args=(str(folder),), nprocs=2)
    return folder


@pytest.fixture(scope="module")
def one_process() -> dict[str, Tensor]:
    towers = Towers()
    loss = towers.losses(batch_of_three(), lambda features: features)
    loss.backward()
    return {"loss": loss.detach(), **{key: parameter.grad for key, parameter in towers.named_parameters()}}


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_equal_one(two_processes: Path, one_process: dict[str, Tensor], rank: int) -> None:
    result = torch.load(two_processes / f"with-{rank}.pt", weights_only=True)
    torch.testing.assert_close(result, one_process, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_gather_without_gradient_is_seen(two_processes: Path, one_process: dict[str, Tensor], rank: int) -> None:
    """The loss is equal, so only the gradient tells."""
    result = torch.load(two_processes / f"without-{rank}.pt", weights_only=True)
    torch.testing.assert_close(result["loss"], one_process["loss"])
    for name in ("image.weight", "long.weight", "short.weight"):
        error = (result[name] - one_process[name]).abs().max() / one_process[name].abs().max()
        assert error.item() > 0.3


def test_components_of_each_processs_own_images():
    """Case 135: what the papers leave open. Two processes of 6 pairs, the loss and the gradient of the first one's."""
    scale, normalize = torch.tensor(1.5), nn.functional.normalize
    own = [random_features(6, 10, seed=seed).requires_grad_() for seed in (0, 1, 2)]
    other = [normalize(random_features(6, 10, seed=seed), dim=-1) for seed in (3, 4, 5)]
    received = iter([*other, principal_components(other[0], rank=3)])
    options = {"rank": 3, "short_weight": 0.4, "local_components": True}
    loss = two_caption_loss(*own, scale, **options, gather=lambda part: torch.cat([part, next(received)]))
    found = torch.autograd.grad(loss.total, own)

    image, long, short = (torch.cat([normalize(left, dim=-1), right]) for left, right in zip(own, other, strict=True))
    reduced = torch.cat([principal_components(part, rank=3) for part in (image[:6], image[6:])])
    wanted = 0.4 * contrastive_loss(reduced, short, scale) + 0.6 * contrastive_loss(image, long, scale)
    torch.testing.assert_close(loss.total, wanted)
    for left, right in zip(found, torch.autograd.grad(wanted, own), strict=True):
        torch.testing.assert_close(left, right, atol=1e-6, rtol=1e-4)
    everything = two_caption_loss(image, long, short, scale, rank=3, short_weight=0.4)
    assert abs(everything.short - loss.short) > 1e-3
    alone = two_caption_loss(*own, scale, **options)  # one process: its own images are all
    torch.testing.assert_close(alone.total, two_caption_loss(*own, scale, rank=3, short_weight=0.4).total)
