"""The training loop: pictures with a long and a short caption, two towers, one loss.

Method of DeBias-CLIP (arXiv 2602.22419). Every process sees its rows of one global batch, features are gathered with
gradient, and the batch that is contrasted is that of all processes: accumulating gradients would not enlarge it.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader

from debias_sd.datasets.faults import Fault, Faults
from debias_sd.datasets.records import describe_counts
from debias_sd.losses import contrastive_loss, two_caption_loss
from debias_sd.report import check_writable
from train_encoder.batches import Collator
from train_encoder.checkpoints import find_checkpoint, load_checkpoint, save_checkpoint
from train_encoder.data import GlobalBatches, RecordPairs, ShapesPairs, open_pairs
from train_encoder.export import known_words, make_provenance, save_encoder_folder
from train_encoder.log import TrainLog
from train_encoder.model import LARGEST_LOGIT_SCALE, FrozenRows, Towers, load_start, make_heads, stretch_start
from train_encoder.processes import gather_with_gradient, launcher_note, start_processes
from train_encoder.schedule import learning_rate
from train_encoder.stay_close import StayClose

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import CLIPTokenizer

    from train_encoder.config import TrainConfig


@dataclass
class Run:
    """All parts of a run that is ready to train, at update number `step`."""

    config: TrainConfig
    accelerator: Accelerator
    tokenizer: CLIPTokenizer
    towers: Towers  # the bare module
    wrapped: torch.nn.Module  # the same one as accelerate wraps it
    optimizer: torch.optim.Optimizer
    frozen: FrozenRows | None
    stay_close: StayClose | None
    data: ShapesPairs | RecordPairs
    faults: Faults  # records on disk that had to be replaced, of all processes
    step: int = 0

    @property
    def folder(self) -> Path:
        return Path(self.config.output_dir)


def prepare(config: TrainConfig) -> Run:
    """Load everything, and the checkpoint to go on from; ValueError for what the user can mend."""
    check_writable(Path(config.output_dir) / "train_log.jsonl")
    accelerator = start_processes(config)
    model, tokenizer = load_start(config)
    stay_close = StayClose(model.text_model) if config.stay_close_weight else None
    model = stretch_start(model, tokenizer, config)
    towers = Towers(model, config, make_heads(model, config))
    wrapped = accelerator.prepare(towers.train())
    if stay_close is not None:
        stay_close.start.to(accelerator.device)
    optimizer = torch.optim.AdamW(
        towers.parameters(),
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.adam_weight_decay,
        fused=True,
    )
    frozen = None
    if config.stretch_factor > 1:
        frozen = FrozenRows(model.text_model.embeddings.position_embedding.weight, config.keep_positions)
    data = open_pairs(config, size=model.config.vision_config.image_size, processes=accelerator.num_processes)
    advice = "repair or drop them (skip_missing_images: true leaves missing ones out)"
    faults = Faults(data.fault_limit if isinstance(data, RecordPairs) else 0, advice=advice)
    run = Run(config, accelerator, tokenizer, towers, wrapped, optimizer, frozen, stay_close, data, faults)
    torch.manual_seed(config.seed + accelerator.process_index)
    _resume(run)
    return run


def _resume(run: Run) -> None:
    path = find_checkpoint(run.folder, run.config.resume_from_checkpoint)
    if path is None:
        if run.config.resume_from_checkpoint:
            run.accelerator.print(f"no checkpoint in {run.folder}, starting anew")
        return
    state = load_checkpoint(path, trajectory=_trajectory(run))
    run.towers.load_state_dict(state["towers"])
    run.optimizer.load_state_dict(state["optimizer"])
    run.step = state["step"]
    run.faults.add(json.loads(state.get("faults", "[]")))
    torch.set_rng_state(state["rng"][run.accelerator.process_index])
    run.accelerator.print(f"resuming from {path} at step {run.step}")


def _trajectory(run: Run) -> dict[str, Any]:
    return run.config.trajectory() | {"number of processes": run.accelerator.num_processes}


def compute_loss(run: Run, batch: dict[str, Any]) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss to minimise and its unweighted parts by name."""
    config = run.config
    out = run.wrapped(batch)
    if "short" in out:
        loss = two_caption_loss(
            out["image"],
            out["text"],
            out["short"],
            out["logit_scale"],
            short_weight=config.short_weight,
            rank=config.components,
            label_smoothing=config.label_smoothing,
            gather=gather_with_gradient,
        )
        total, parts = loss.total, {"long": loss.long, "short": loss.short}
    else:
        image, text = (gather_with_gradient(F.normalize(out[name].float(), dim=-1)) for name in ("image", "text"))
        total = contrastive_loss(image, text, out["logit_scale"], label_smoothing=config.label_smoothing)
        parts = {"contrastive": total}
    if "grounding" in out:
        parts["grounding"] = out["grounding"]
        total = total + config.grounding_weight * out["grounding"]
    if run.stay_close is not None:
        with run.accelerator.autocast():
            parts["stay_close"] = run.stay_close.loss(batch["input_ids"], out["text_hidden"])
        total = total + config.stay_close_weight * parts["stay_close"]
    return total, parts


def train_step(run: Run, batch: dict[str, Any]) -> dict[str, float]:
    """Make one update and return its log row; FloatingPointError when the loss is not finite."""
    config, started = run.config, time.monotonic()
    rate = learning_rate(
        run.step, peak=config.learning_rate, warmup=config.lr_warmup_steps, total=config.max_train_steps
    )
    for group in run.optimizer.param_groups:
        group["lr"] = rate
    loss, parts = compute_loss(run, batch)
    named = {"loss": loss} | parts
    # The mean over processes: supervision terms are means over their own pairs, and all must stop at the same step.
    replaced = loss.new_tensor(len(batch.get("faults", ())), dtype=torch.float32)
    values = torch.stack([*(value.detach().float() for value in named.values()), replaced])
    *means, replaced_mean = run.accelerator.reduce(values, reduction="mean").tolist()
    row = dict(zip(named, means, strict=True))
    if replaced_mean:
        row["replaced"] = _count_faults(run, batch["faults"])
    if not math.isfinite(row["loss"]):
        raise FloatingPointError(
            f"the loss of step {run.step + 1} is {row['loss']} ({json.dumps(row)}); "
            "lower learning_rate, or resume from a checkpoint with another seed."
        )
    run.accelerator.backward(loss)
    if run.frozen is not None:
        run.frozen.mask_gradient()
    if config.max_grad_norm:
        torch.nn.utils.clip_grad_norm_(run.towers.parameters(), config.max_grad_norm)
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=True)
    if run.frozen is not None:
        run.frozen.restore()
    with torch.no_grad():
        scale = run.towers.clip.logit_scale.clamp_(max=LARGEST_LOGIT_SCALE).exp().item()
    run.step += 1
    return {"step": run.step} | row | {"lr": rate, "scale": scale, "seconds": round(time.monotonic() - started, 4)}


def _count_faults(run: Run, faults: list[Fault]) -> int:
    """Count the step's broken records of all processes; every process stops at the same step when they are too many."""
    from accelerate.utils import gather_object

    everywhere = gather_object(faults)
    run.faults.add(everywhere)
    return len(everywhere)


def make_loader(run: Run) -> DataLoader:
    """The batches from the present step to the last, this process's rows of each."""
    config, accelerator = run.config, run.accelerator
    batches = GlobalBatches(
        config.train_batch_size,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        start=run.step,
        total=config.max_train_steps,
    )
    length = run.tokenizer.model_max_length
    collate = Collator(run.tokenizer, config, length, run.data.mean, run.data.std)
    return DataLoader(run.data, batch_sampler=batches, collate_fn=collate, num_workers=config.dataloader_num_workers)


def save_state(run: Run) -> None:
    """Write a checkpoint of all processes."""
    from accelerate.utils import gather_object

    rng = gather_object([torch.get_rng_state()])
    if run.accelerator.is_main_process:
        state = {
            "step": run.step,
            "towers": run.towers.state_dict(),
            "optimizer": run.optimizer.state_dict(),
            "rng": rng,
            "faults": json.dumps(run.faults.as_list()),
            "trajectory": json.dumps(_trajectory(run)),
        }
        save_checkpoint(run.folder, state, keep=run.config.checkpoints_total_limit)
    run.accelerator.wait_for_everyone()


def train(run: Run, *, command: list[str]) -> None:
    """Train to the last step and write the encoder folder."""
    from tqdm import tqdm

    config, main = run.config, run.accelerator.is_main_process
    if main:
        run.folder.mkdir(parents=True, exist_ok=True)
        _announce(run)
    row: dict[str, float] = {}
    log = TrainLog(run.folder, start=run.step, report_to=config.report_to) if main else None
    bar = tqdm(total=config.max_train_steps, initial=run.step, disable=not main, unit="step")
    try:
        for batch in make_loader(run):
            row = train_step(run, _to_device(batch, run.accelerator.device))
            if log is not None:
                log.write(row)
            bar.update()
            bar.set_postfix(loss=f"{row['loss']:.3f}", refresh=False)
            if config.checkpointing_steps and run.step % config.checkpointing_steps == 0:
                save_state(run)
    finally:
        bar.close()
        if log is not None:
            log.close()
    if main:
        processes = run.accelerator.num_processes
        provenance = make_provenance(config, command=command, processes=processes, final=row) | _data_used(run)
        words = known_words(config)
        save_encoder_folder(run.towers.clip, run.tokenizer, run.folder, provenance=provenance, words=words)
        print(f"encoder written to {run.folder}")
    run.accelerator.wait_for_everyone()


def _data_used(run: Run) -> dict[str, Any]:
    """What provenance says of records on disk; the broken ones are said aloud too."""
    if not isinstance(run.data, RecordPairs):
        return {}
    if len(run.faults):
        print(f"{len(run.faults):,} broken records were replaced ({describe_counts(run.faults.counts())})")
    records = run.data.records
    return {"data": {"records": len(records), "skipped": dict(records.left_out), "broken": run.faults.counts()}}


def _to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in batch.items()}


def _announce(run: Run) -> None:
    config, processes = run.config, run.accelerator.num_processes
    note = launcher_note(processes)
    if note:
        print(note)
    if isinstance(run.data, RecordPairs):
        skipped = run.data.records.left_out
        reasons = f" ({describe_counts(skipped)})" if skipped else ""
        print(f"{len(run.data.records):,} pairs, {sum(skipped.values()):,} skipped{reasons}")
    print(
        f"{config.recipe}: {processes} process(es) x {config.train_batch_size} pairs, "
        f"{run.tokenizer.model_max_length} positions, steps {run.step} to {config.max_train_steps}"
    )
