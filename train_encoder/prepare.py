"""Preparation of a run: models, data, optimizer, and the checkpoint that it goes on from.

Two runs with equal fingerprints start from the same weights and read the same data.
Of records on disk, as many are looked at as a network disk gives in seconds: their number, the captions of `CAPTIONS`
of them, the sizes of `SIZES` pictures and the whole of `PICTURES`, each spread evenly from the first to the last.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from debias_sd.datasets.pictures import PictureFault, read_content
from debias_sd.datasets.records import Encoded, Faults, Picture, Piece
from debias_sd.report import check_writable
from debias_sd.run_state import check_finite, fingerprint, note_versions, weights_fingerprint
from train_encoder.data.features import load_features
from train_encoder.data.pairs import open_pairs
from train_encoder.engine import Engine, FrozenRows
from train_encoder.export import check_hub
from train_encoder.heldout import HeldOut, read_heldout
from train_encoder.log import check_trackers
from train_encoder.model.bases import load_start
from train_encoder.model.families import family_of, make_towers, stretch_model
from train_encoder.processes import on_main, start_processes
from train_encoder.run import Contrast, Run
from train_encoder.run_folder import check_finished, check_folder, check_later, find_checkpoint, load_checkpoint
from train_encoder.terms import make_terms

if TYPE_CHECKING:
    from accelerate import Accelerator

    from debias_sd.datasets.records import Records
    from debias_sd.preprocessing import Preprocessing
    from train_encoder.data.pairs import Pairs
    from train_encoder.model.bases import Start
    from train_encoder.settings import TrainConfig

CAPTIONS, SIZES, PICTURES = 10_000, 4_096, 256
SHAPES = 16
PROBE = "A photo of two small red cats, 1990; l'été <|endoftext|>"


def start_origin(start: Start) -> dict[str, Any]:
    """Of the model before its position table is stretched, of its tokenizer, and of how it reads pictures."""
    words = [sorted(start.tokenizer.get_vocab().items()), start.tokenizer(PROBE).input_ids]
    return {
        "weights of the start": weights_fingerprint(start.model.state_dict()),
        "tokenizer of the start": fingerprint([json.dumps(words).encode()]),
        "preprocessing of the start": fingerprint([repr(start.preprocessing).encode()]),
    }


def data_origin(data: Pairs) -> dict[str, Any]:
    """Of the records, or of the first pairs of the shapes world."""
    records = data.records
    if records is not None:
        return {
            "number of records of train_data": len(records),
            "captions of train_data": fingerprint(_captions(records)),
            "pictures of train_data": fingerprint(_pictures(records)),
        }
    pairs = [data[number] for number in range(SHAPES)]
    return {
        "captions of train_data": fingerprint(pair["text"].encode() for pair in pairs),
        "pictures of train_data": fingerprint(pair["image"].tobytes() for pair in pairs),
    }


def _spread(count: int, at_most: int) -> np.ndarray:
    """At most `at_most` of the numbers 0 to count - 1, evenly spread, first and last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, at_most)).round().astype(np.int64))


def _captions(records: Records) -> Iterator[bytes]:
    for index in _spread(len(records), CAPTIONS):
        record = records[int(index)]
        yield json.dumps([record.key, record.captions, record.short]).encode()


def _pictures(records: Records) -> Iterator[bytes]:
    for index in _spread(len(records), SIZES):
        yield str(_size(records[int(index)].image)).encode()
    for index in _spread(len(records), PICTURES):
        try:
            yield read_content(records[int(index)].image)
        except PictureFault as fault:  # it is replaced in training, by the same other one each time
            yield fault.kind.encode()


def _size(picture: Picture) -> int | None:
    if isinstance(picture, Encoded):
        return len(picture.content)
    if isinstance(picture, Piece):
        return picture.size
    try:
        return os.stat(picture).st_size
    except OSError:
        return None


ADVICE = "repair or drop them (skip_missing_images: true leaves missing ones out)"


def open_run(config: TrainConfig) -> Engine:
    """Check what a run writes and reports to, and join its processes; ValueError for what the user can mend."""
    check_writable(Path(config.output_dir) / "train_log.jsonl")
    check_folder(config)
    check_trackers(config.report_to)
    if config.push_to_hub:
        check_hub(config.hub_model_id)
    engine = start_processes(config)
    engine.check(config)
    return engine


def prepare(config: TrainConfig) -> Run:
    """Load everything, and the checkpoint to go on from; ValueError for what the user can mend."""
    engine = open_run(config)
    accelerator = engine.accelerator
    start = load_start(config)
    model, tokenizer, preprocessing = start
    family_of(model).check(config)
    named = config.pretrained_model_name_or_path or "from scratch"
    check_finite(model.state_dict(), what=f"the model {named}", advice="copy it again, or start from another one")
    origin = {"number of processes": accelerator.num_processes, "engine": engine.name} | start_origin(start)
    terms = make_terms(model, tokenizer, config)
    model = stretch_model(model, tokenizer, config)
    chunks = accelerator.num_processes * config.contrast_chunks
    data = open_pairs(config, preprocessing, processes=chunks)
    origin |= data_origin(data)
    trajectory = config.trajectory() | origin
    if config.resume_from_checkpoint is not None:
        check_finished(Path(config.output_dir), trajectory, max_train_steps=config.max_train_steps)
    heldout = open_heldout(accelerator, config, preprocessing)
    towers = make_towers(model, config, terms).to(accelerator.device)
    if config.freeze_image_tower:
        count = data.pictures(config.max_train_steps * config.train_batch_size * chunks)
        data.features = load_features(accelerator, towers, data, config, count=count)
    wrapped, optimizer = engine.prepare(towers, lambda module: make_optimizer(module, config))
    frozen = None
    if config.stretch_factor > 1:
        frozen = FrozenRows(model.text_model.embeddings.position_embedding.weight, config.keep_positions)
    run = Run(
        config=config,
        engine=engine,
        tokenizer=tokenizer,
        towers=towers,
        wrapped=wrapped,
        optimizer=optimizer,
        frozen=frozen,
        contrast=Contrast(accelerator, config),
        terms=tuple(term.to(accelerator.device) if term.distils else term for term in terms),
        data=data,
        heldout=heldout,
        faults=Faults(data.fault_limit, advice=ADVICE),
        preprocessing=preprocessing,
        trajectory=trajectory,
        origin=origin,
    )
    return start_from(run)


def start_from(run: Run) -> Run:
    """Put `run` where it begins: its random numbers, and the checkpoint that it goes on from."""
    torch.manual_seed(run.config.seed + run.accelerator.process_index)
    resume(run)
    if not run.config.overwrite_output_dir:
        check_later(run.folder, run.step)
    return run


def open_heldout(accelerator: Accelerator, config: TrainConfig, preprocessing: Preprocessing) -> HeldOut | None:
    """Read what retrieval is measured on, before the first step: a fault in it is told now. None where nobody asks."""
    found: list[HeldOut] = []
    if config.eval_steps:
        on_main(accelerator, lambda: found.append(read_heldout(config, preprocessing)))
    return found[0] if found else None


def make_optimizer(towers: torch.nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW over every parameter that trains, one group."""
    return torch.optim.AdamW(
        [parameter for parameter in towers.parameters() if parameter.requires_grad],
        lr=config.learning_rate,
        betas=(config.adam_beta1, config.adam_beta2),
        eps=config.adam_epsilon,
        weight_decay=config.adam_weight_decay,
        fused=True,
    )


def resume(run: Run) -> None:
    """Go on from the checkpoint that the settings name, where there is one."""
    path, print_once = find_checkpoint(run.folder, run.config.resume_from_checkpoint), run.accelerator.print
    if path is None:
        if run.config.resume_from_checkpoint:
            print_once(f"no checkpoint in {run.folder}, starting anew")
        run.versions, _ = note_versions([], since=0)
        return
    state = load_checkpoint(path, trajectory=run.trajectory, before=run.config.before())
    if state["step"] > run.config.max_train_steps:
        raise ValueError(
            f"checkpoint {path} is at step {state['step']} and max_train_steps is {run.config.max_train_steps}; "
            "raise it, or resume from an earlier checkpoint."
        )
    run.engine.load_states(run.towers, run.optimizer, (state["towers"], state["optimizer"]))
    run.step = state["step"]
    run.faults.add(json.loads(state.get("faults", "[]")))
    torch.set_rng_state(state["rng"][run.accelerator.process_index])
    print_once(f"resuming from {path} at step {run.step}")
    run.versions, warning = note_versions(json.loads(state["versions"]), since=run.step)
    if warning:
        print_once(f"warning: {warning}")
