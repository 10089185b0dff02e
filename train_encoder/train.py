"""The training loop: pictures with a long and a short caption, two towers, one loss.

`prepare.py` makes the run, `step.py` one step of it. Every process sees its rows of one global batch. What
decides how a run goes on is written by `save_state`, in one piece.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from debias_sd.datasets.records import describe_counts
from debias_sd.run_state import check_finite
from train_encoder.data.batches import Collator
from train_encoder.data.pairs import GlobalBatches
from train_encoder.export import known_words, make_card, make_provenance, push_folder, save_encoder_folder
from train_encoder.lengthen import finish
from train_encoder.pair_terms import collators_of
from train_encoder.processes import EXIT_CODE, launcher_note, leave_signals_to_the_run, on_main
from train_encoder.run_folder import describe_diverged, lock_folder, overwrite, save_checkpoint
from train_encoder.settings import LENGTHEN
from train_encoder.step import train_step
from train_encoder.watch import Watch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from train_encoder.run import Run


def make_loader(run: Run) -> DataLoader:
    """The batches from the present step to the last, this process's rows of each."""
    config, accelerator = run.config, run.accelerator
    batches = GlobalBatches(
        config.train_batch_size * config.contrast_chunks,
        rank=accelerator.process_index,
        processes=accelerator.num_processes,
        start=run.step,
        total=config.max_train_steps,
    )
    collate = run.collate or Collator(run.texts, config, run.data.preprocessing, collators_of(run.terms))
    return DataLoader(
        run.data,
        batch_sampler=batches,
        collate_fn=collate,
        num_workers=config.dataloader_num_workers,
        worker_init_fn=leave_signals_to_the_run,
    )


def save_state(run: Run) -> None:
    """Write a checkpoint of all processes."""
    from accelerate.utils import gather_object

    rng = gather_object([torch.get_rng_state()])
    towers, optimizer = run.engine.read_states(run.towers, run.optimizer)
    state = {
        "step": run.step,
        "towers": towers,
        "optimizer": optimizer,
        "rng": rng,
        "faults": json.dumps(run.faults.as_list()),
        "trajectory": json.dumps(run.trajectory),
        "versions": json.dumps(run.versions),
    }
    keep = run.config.checkpoints_total_limit
    on_main(run.accelerator, lambda: save_checkpoint(run.folder, state, keep=keep))


def train(run: Run, *, command: list[str]) -> int:
    """Train to the last step and write the encoder folder; returns the exit code, 143 when SIGTERM ended it before."""
    config = run.config
    with contextlib.ExitStack() as stack:
        on_main(run.accelerator, lambda: _begin(run, stack))
        stack.enter_context(run.stop)
        watch = stack.enter_context(Watch(run))
        row = watch.begin()
        for batch in make_loader(run):
            row = train_step(run, _to_device(batch, run.accelerator.device))
            watch.step(row)
            due = config.checkpointing_steps and run.step % config.checkpointing_steps == 0
            stopping = run.stop.agreed and run.step < config.max_train_steps
            if due or stopping:
                save_state(run)
            if stopping:
                break
    if run.step < config.max_train_steps:
        run.accelerator.print(
            f"stopped by SIGTERM after step {run.step}, which is saved; go on with --resume_from_checkpoint latest"
        )
        return EXIT_CODE
    if config.recipe == LENGTHEN:
        on_main(run.accelerator, lambda: finish(run, command=command, row=row))
        return 0
    model = run.engine.whole_model(run.towers)
    on_main(run.accelerator, lambda: _finish(run, model, command=command, row=row))
    return 0


def _begin(run: Run, stack: contextlib.ExitStack) -> None:
    """Take the folder for as long as `stack` is entered."""
    run.folder.mkdir(parents=True, exist_ok=True)
    stack.enter_context(lock_folder(run.folder))
    if run.config.overwrite_output_dir:
        overwrite(run.folder)
    _announce(run)


def _finish(run: Run, model: PreTrainedModel, *, command: list[str], row: dict[str, float]) -> None:
    """Write the encoder folder, and upload it where that is wanted."""
    config, processes = run.config, run.accelerator.num_processes
    weights = "the encoder is not written: the model after the last step"
    check_finite(model.state_dict(), what=weights, advice=describe_diverged(run.folder))
    provenance = make_provenance(config, command=command, processes=processes, final=row) | _data_used(run)
    provenance |= {"origin": run.origin} | ({"resumed": run.versions} if len(run.versions) > 1 else {})
    words = known_words(config)
    files = {"provenance.json": provenance} | ({} if words is None else {"known_words.json": words})
    if model.config.model_type == "siglip":  # a CLIP of no other file is read as CLIP's own preprocessing
        files["preprocessor_config.json"] = run.preprocessing.as_config()
    files["README.md"] = make_card(run.folder, config, model=model.config, provenance=provenance)
    save_encoder_folder(model, run.tokenizer, run.folder, files=files)
    print(f"encoder written to {run.folder}")
    if config.push_to_hub:
        print(f"uploaded to {push_folder(run.folder, config.hub_model_id)}")


def _data_used(run: Run) -> dict[str, Any]:
    """What provenance says of records on disk; the broken ones are said aloud too."""
    records = run.data.records
    if records is None:
        return {}
    if len(run.faults):
        print(f"{len(run.faults):,} broken records were replaced ({describe_counts(run.faults.counts())})")
    return {"data": {"records": len(records), "skipped": dict(records.left_out), "broken": run.faults.counts()}}


def _to_device(batch: dict[str, Any], device: torch.device) -> dict[str, Any]:
    return {name: v.to(device) if isinstance(v, Tensor) else v for name, v in batch.items()}


def _announce(run: Run) -> None:
    config, processes = run.config, run.accelerator.num_processes
    note = launcher_note(processes)
    if note:
        print(note)
    if run.data.records is not None:
        skipped = run.data.records.left_out
        reasons = f" ({describe_counts(skipped)})" if skipped else ""
        print(f"{len(run.data.records):,} pairs, {sum(skipped.values()):,} skipped{reasons}")
    chunks = f" x {config.contrast_chunks} chunks" if config.contrast_chunks > 1 else ""
    what = f"lengthen {config.text_encoder}" if config.recipe == LENGTHEN else config.recipe
    kind = "texts" if config.recipe == LENGTHEN else "pairs"
    print(
        f"{what}: {processes} process(es) x {config.train_batch_size} {kind}{chunks}, "
        f"{run.tokenizer.model_max_length} positions, steps {run.step} to {config.max_train_steps}"
    )
