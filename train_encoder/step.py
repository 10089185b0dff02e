"""One update: features, the loss over the pairs of all processes, gradients, AdamW.

Method of DeBias-CLIP (arXiv 2602.22419). Features are gathered with gradient, each process computes the loss of its own
rows against all, and the batch that is contrasted is that of all processes.

With `gradient_accumulation_steps` it is larger still, by gradient caching (Gao et al., arXiv 2101.06983): the features
of all pairs are computed a chunk at a time without a graph, the loss and its gradient with respect to the features at
once, and then each chunk again with its graph, to which the features' gradients are handed. The gradient is exactly
that of the whole batch; memory is that of one chunk, time that of a second forward pass.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from debias_sd.losses import pair_loss, two_caption_loss
from train_encoder.checkpoints import describe_diverged
from train_encoder.engines import autocast, backward, clamp_temperature, delay_meeting
from train_encoder.processes import gather_with_gradient
from train_encoder.schedule import learning_rate
from train_encoder.zero import write_through

if TYPE_CHECKING:
    from debias_sd.datasets.faults import Fault
    from train_encoder.run import Run

FEATURES = ("image", "text", "short")
SCALARS = ("logit_scale", "logit_bias")


class Forward(NamedTuple):
    """What a forward pass leaves: the loss to minimise, its unweighted parts by name, and what makes the gradients."""

    total: Tensor
    parts: dict[str, Tensor]
    backward: Callable[[], None]


def contrast(run: Run, features: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The contrastive loss of this process's rows against the pairs of all, and its parts.

    `features` has image, text and (with two captions) short [b, d], as the towers give them, logit_scale and, of
    SigLIP's towers, logit_bias.
    """
    config, processes = run.config, run.accelerator.num_processes
    rows, bias = None, features.get("logit_bias")
    if processes > 1:
        count = len(features["image"])
        rows = slice(run.accelerator.process_index * count, (run.accelerator.process_index + 1) * count)
    options = {"label_smoothing": config.label_smoothing, "logit_bias": bias, "rows": rows}
    if "short" in features:
        loss = two_caption_loss(
            features["image"],
            features["text"],
            features["short"],
            features["logit_scale"],
            short_weight=config.short_weight,
            rank=config.components,
            local_components=config.local_components,
            gather=gather_with_gradient,
            **options,
        )
        return loss.total, {"long": loss.long, "short": loss.short}
    image, text = (gather_with_gradient(F.normalize(features[name].float(), dim=-1)) for name in ("image", "text"))
    total = pair_loss(image, text, features["logit_scale"], **options)
    return total, {"contrastive": total}


def supervise(run: Run, batch: dict[str, Any], out: dict[str, Tensor]) -> dict[str, tuple[float, Tensor]]:
    """The terms that look at one pair at a time, by name: weight and value."""
    terms = {}
    if "grounding" in out:
        terms["grounding"] = (run.config.grounding_weight, out["grounding"])
    for name, term in (("stay_close", run.stay_close), ("late_sentences", run.late_sentences)):
        if term is not None:
            with autocast(run.accelerator, run.config):
                value = term.loss(batch["input_ids"], out["text_hidden"])
            terms[name] = (getattr(run.config, f"{name}_weight"), value)
    return terms


def whole_forward(run: Run, batch: dict[str, Any]) -> Forward:
    """All pairs of this process at once."""
    out = run.wrapped(batch)
    total, parts = contrast(run, out)
    for name, (weight, value) in supervise(run, batch, out).items():
        parts[name] = value
        total = total + weight * value
    return Forward(total, parts, lambda: backward(run.accelerator, run.wrapped, total, engine=run.engine))


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
    contrasted, parts = contrast(run, leaves)
    total = contrasted.detach()
    for name in terms[0]:
        parts[name] = torch.stack([term[name][1] for term in terms]).mean()
        total = total + terms[0][name][0] * parts[name]

    def chunks_backward() -> None:
        contrasted.backward()
        gradients = [leaves[name].grad.split(run.config.train_batch_size) for name in names]
        for number, chunk in enumerate(chunks):
            options = {"engine": run.engine, "last": number == len(chunks) - 1}
            with delay_meeting(run.accelerator, run.wrapped, **options):
                out = run.wrapped(chunk)
                handed = sum((out[n].float() * g[number]).sum() for n, g in zip(names, gradients, strict=True))
                # Every chunk uses every parameter, as DistributedDataParallel asks.
                for name in scalars:
                    handed = handed + out[name] * leaves[name].grad / len(chunks)
                for weight, value in supervise(run, chunk, out).values():
                    handed = handed + weight * value / len(chunks)
                backward(run.accelerator, run.wrapped, handed, **options)

    return Forward(total, parts, chunks_backward)


def split_batch(batch: dict[str, Any], size: int) -> list[dict[str, Any]]:
    """`batch` in parts of `size` rows; mentions follow their rows."""
    count = len(batch["input_ids"])
    chunks = []
    for start in range(0, count, size):
        rows = slice(start, start + size)
        chunk = {name: value[rows] for name, value in batch.items() if name not in ("mentions", "faults")}
        if "mentions" in batch:
            inside = (batch["mentions"][:, 0] >= start) & (batch["mentions"][:, 0] < start + size)
            chunk["mentions"] = batch["mentions"][inside].clone()
            chunk["mentions"][:, 0] -= start
        chunks.append(chunk)
    return chunks


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
    forward = (whole_forward if config.gradient_accumulation_steps == 1 else cached_forward)(run, batch)
    row = _average(run, {"loss": forward.total} | forward.parts, batch)
    if not math.isfinite(row["loss"]):
        raise FloatingPointError(
            f"the loss of step {run.step + 1} is {row['loss']} ({json.dumps(row)}) with the pairs "
            f"{_name_pairs(run, batch)}; {describe_diverged(run.folder)}."
        )
    forward.backward()
    scale = update(run)
    run.step += 1
    return {"step": run.step} | row | {"lr": rate, "scale": scale, "seconds": round(time.monotonic() - started, 4)}


def update(run: Run) -> float:
    """Clip, step, put back what stays; returns the factor of the logits."""
    table = run.frozen
    if run.engine == "deepspeed":
        run.wrapped.step()
    else:
        if table is not None:
            table.mask_gradient()
        if run.config.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(run.towers.parameters(), run.config.max_grad_norm)
        run.optimizer.step()
        run.optimizer.zero_grad(set_to_none=True)
    if table is not None:
        table.restore()
    logit_scale = run.towers.clip.logit_scale
    scale = clamp_temperature(logit_scale, largest=run.towers.largest_logit_scale)
    if run.engine == "deepspeed":
        write_through([logit_scale] if table is None else [logit_scale, table.table])
    return scale


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
