"""One update: features, the loss over the pairs of all processes, gradients, AdamW.

The batch that is contrasted is that of all processes. With `contrast_chunks` it is larger still, by gradient caching
(Gao et al., arXiv 2101.06983): the features of all pairs are computed a chunk at a time without a graph, the loss and
its gradient with respect to the features at once, and then each chunk again with its graph, to which the features'
gradients are handed. The gradient is exactly that of the whole batch. Memory is that of one chunk, time that of a
second forward pass.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from train_encoder.engine import autocast, clamp_temperature
from train_encoder.run import FEATURES, SCALARS
from train_encoder.run_folder import describe_diverged

if TYPE_CHECKING:
    from debias_sd.datasets.records import Fault
    from train_encoder.run import Run


class Forward(NamedTuple):
    """What a forward pass leaves: the loss to minimise, its unweighted parts by name, and what makes the gradients."""

    total: Tensor
    parts: dict[str, Tensor]
    backward: Callable[[], None]


def supervise(run: Run, batch: dict[str, Any], out: dict[str, Tensor]) -> dict[str, tuple[float, Tensor]]:
    """The terms that look at one pair at a time, by name: weight and value."""
    with autocast(run.accelerator, run.config):
        return {term.name: (term.weight, term.loss(batch, out)) for term in run.terms}


def whole_forward(run: Run, batch: dict[str, Any]) -> Forward:
    """All pairs of this process at once."""
    out = run.wrapped(batch)
    total, parts = run.contrast.loss(out) if run.contrast is not None else (0.0, {})
    for name, (weight, value) in supervise(run, batch, out).items():
        parts[name] = value
        total = total + weight * value
    return Forward(total, parts, lambda: run.accelerator.backward(total))


def cached_forward(run: Run, batch: dict[str, Any]) -> Forward:
    """A chunk of `train_batch_size` pairs at a time; see the module's docstring."""
    chunks = split_batch(batch, run.config.train_batch_size)
    with torch.no_grad():
        outs = [run.towers(chunk) for chunk in chunks]
        terms = [supervise(run, chunk, out) for chunk, out in zip(chunks, outs, strict=True)]
    names = [name for name in FEATURES if name in outs[0]]
    leaves = {name: torch.cat([out[name].float() for out in outs]).requires_grad_() for name in names}
    scalars = [name for name in SCALARS if name in outs[0]]
    leaves |= {name: outs[0][name].detach().float().requires_grad_() for name in scalars}
    contrasted, parts = run.contrast.loss(leaves)
    total = contrasted.detach()
    for name in terms[0]:
        parts[name] = torch.stack([term[name][1] for term in terms]).mean()
        total = total + terms[0][name][0] * parts[name]

    def chunks_backward() -> None:
        contrasted.backward()
        gradients = [leaves[name].grad.split(run.config.train_batch_size) for name in names]
        for number, chunk in enumerate(chunks):
            with run.engine.delay_meeting(run.wrapped, last=number == len(chunks) - 1):
                out = run.wrapped(chunk)
                handed = sum((out[n].float() * g[number]).sum() for n, g in zip(names, gradients, strict=True))
                # Every chunk uses every parameter, as DistributedDataParallel asks.
                for name in scalars:
                    handed = handed + out[name] * leaves[name].grad / len(chunks)
                for weight, value in supervise(run, chunk, out).values():
                    handed = handed + weight * value / len(chunks)
                run.accelerator.backward(handed)

    return Forward(total, parts, chunks_backward)


def forward_of(run: Run, batch: dict[str, Any]) -> Forward:
    """The forward pass of a step."""
    return (whole_forward if run.config.contrast_chunks == 1 else cached_forward)(run, batch)


def split_batch(batch: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """`batch` in parts of `size` rows."""
    rows = {name: value for name, value in batch.items() if name != "faults"}
    starts = range(0, len(batch["input_ids"]), size)
    return [{name: value[start : start + size] for name, value in rows.items()} for start in starts]


def learning_rate(step: int, *, peak: float, warmup: int, total: int, scheduler: str = "cosine") -> float:
    """Return the rate of update number `step`, 0 to `total - 1`: linear warm-up, then a cosine to 0 or constant.

    Accelerate's prepared schedulers step once per process. A rate that is computed has no such trap, and needs no
    state in a checkpoint.

    >>> learning_rate(14_597, peak=1e-6, warmup=200, total=14_598)
    1.1902423935339357e-14
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if scheduler == "constant":
        return peak
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) * peak


def train_step(run: Run, batch: dict[str, Any]) -> dict[str, float]:
    """Make one update and return its log row; FloatingPointError when the loss is not finite."""
    config, started = run.config, time.monotonic()
    rate = learning_rate(
        run.step,
        peak=config.learning_rate,
        warmup=config.lr_warmup_steps,
        total=config.max_train_steps,
        scheduler=config.lr_scheduler,
    )
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    forward = forward_of(run, batch)
    row = _average(run, {"loss": forward.total} | forward.parts, batch)
    if not math.isfinite(row["loss"]):
        raise FloatingPointError(
            f"the loss of step {run.step + 1} is {row['loss']} ({json.dumps(row)}) with the pairs "
            f"{_name_pairs(run, batch)}; {describe_diverged(run.folder)}."
        )
    forward.backward()
    scale = update(run)
    run.step += 1
    row = {"step": run.step} | row | {"lr": rate} | ({} if scale is None else {"scale": scale})
    return row | {"seconds": round(time.monotonic() - started, 4)}


def update(run: Run) -> float | None:
    """Clip, step, put back what stays; returns the factor of the logits, where there is one."""
    if run.frozen is not None:
        run.frozen.mask_gradient()
    if run.config.max_grad_norm:
        torch.nn.utils.clip_grad_norm_(run.towers.parameters(), run.config.max_grad_norm)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    if run.frozen is not None:
        run.frozen.restore()
    if run.towers.largest_logit_scale is None:
        return None
    return clamp_temperature(run.towers.clip.logit_scale, largest=run.towers.largest_logit_scale)


def _average(run: Run, named: dict[str, Tensor], batch: dict[str, Any]) -> dict[str, float]:
    """The mean of the numbers over processes: terms are means over a process's own pairs, and all must stop at the same
    step. With `replaced`, where records were."""
    counts = named["loss"].new_tensor([len(batch.get("faults", ())), run.stop.asked], dtype=torch.float32)
    values = torch.cat([torch.stack([value.detach().float() for value in named.values()]), counts])
    *means, replaced_mean, asked = run.accelerator.reduce(values, reduction="mean").tolist()
    run.stop.agreed = asked > 0
    row = dict(zip(named, means, strict=True))
    return row | {"replaced": _count_faults(run, batch["faults"])} if replaced_mean else row


def _count_faults(run: Run, faults: list[Fault]) -> int:
    """Count the step's broken records of all processes; every process stops at the same step when they are too many."""
    from accelerate.utils import gather_object

    everywhere = gather_object(faults)
    run.faults.add(everywhere)
    return len(everywhere)


def _name_pairs(run: Run, batch: dict[str, Any]) -> str:
    """The keys of the batch's records, of all processes."""
    from accelerate.utils import gather_object

    return ", ".join(gather_object([str(key) for key in batch["keys"]]))
