"""Lengthening: each CLIP text encoder of a pipeline gets 248 positions, trained on text alone (recipe `lengthen`).

One encoder is one run, in a folder of its own: the first in `output_dir`, the second in `output_dir/encoder_2`, which
`load_debias_pipeline(base, encoder=output_dir)` puts into its slot too.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from debias_sd.datasets.records import Faults, describe_counts
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import SECOND
from debias_sd.prompts.own_encoders import OwnEncoder, clip_slots, read_encoders
from debias_sd.run_state import check_finite, fingerprint, weights_fingerprint
from train_encoder.data.text_sources import open_texts
from train_encoder.data.texts import HELD_OUT, TextCollator, TextItems, held_out_texts
from train_encoder.engine import FrozenRows, autocast
from train_encoder.export import make_provenance, move_in
from train_encoder.hold import LAYOUT, Hold
from train_encoder.model.text_tower import TextTower
from train_encoder.prepare import make_optimizer, open_run, start_from
from train_encoder.run import Run
from train_encoder.run_folder import check_finished, describe_diverged

if TYPE_CHECKING:
    from train_encoder.settings import TrainConfig

LOOKED_AT = 1000  # texts, evenly spread, that are looked at before the first step
GIB = 2**30


def split_config(config: TrainConfig) -> list[TrainConfig]:
    """The runs of one command: an encoder of the base each, or the one that `text_encoder` names."""
    if config.text_encoder is not None:
        return [config]
    names = clip_slots(config.pretrained_model_name_or_path, config=config.pipeline_config)
    folders = [config.output_dir, str(Path(config.output_dir) / SECOND)]
    return [
        dataclasses.replace(config, text_encoder=name, output_dir=folder)
        for name, folder in zip(names, folders, strict=False)
    ]


@dataclass(frozen=True)
class HeldOutTexts:
    """Texts that are not trained on: how far what is read of them is from what it is held to, by place."""

    batches: list[dict[str, Any]]

    def measure(self, run: Run) -> dict[str, float]:
        """Relative squared distances, in percent."""
        sums: dict[str, list[float]] = {}
        (hold,) = run.terms
        for batch in self.batches:
            run.stop.check()
            batch = {n: v.to(run.accelerator.device) if isinstance(v, torch.Tensor) else v for n, v in batch.items()}
            with torch.no_grad(), autocast(run.accelerator, run.config):
                found = hold.by_place(batch, run.towers(batch))
            for name, (away, size) in found.items():
                total = sums.setdefault(name, [0.0, 0.0])
                total[0], total[1] = total[0] + away, total[1] + size
        return {"step": run.step} | {name: 100 * away / size for name, (away, size) in sums.items() if size}

    def describe(self, row: dict[str, float]) -> str:
        """One line: the distances of one measurement."""
        parts = (f"{_title(name)} {value:.2f}" for name, value in row.items() if name != "step")
        return f"step {row['step']}: distance from the target in percent, {', '.join(parts)}"

    def warning(self, first: dict[str, float], row: dict[str, float]) -> str | None:
        """A sentence where a place has come further from its target than it was before training."""
        worse = [_title(name) for name, value in row.items() if name != "step" and value > max(first[name], 1.0)]
        if not worse:
            return None
        return (
            f"{', '.join(worse)} are further from their target than at step {first['step']}, so reading by sentences "
            "draws better than this encoder; train longer, or with a lower learning_rate."
        )


def _title(name: str) -> str:
    return name.replace("words_0", "words of the first window").replace("words_", "words from ")


def prepare_texts(config: TrainConfig) -> Run:
    """Load one encoder, the texts and the checkpoint to go on from; ValueError for what the user can mend."""
    engine = open_run(config)
    accelerator = engine.accelerator
    own = _find_slot(config)
    items = open_items(config, batch=config.train_batch_size * accelerator.num_processes)
    teacher, name = own.encoder, f"{own.slot.encoder} of {config.pretrained_model_name_or_path or 'the embedded base'}"
    check_finite(teacher.model.state_dict(), what=name, advice="copy it again, or lengthen another one")
    student = teacher.stretch(keep=config.keep_positions, factor=config.stretch_factor)
    student.model.set_attn_implementation(config.attn_implementation)
    collate = TextCollator(teacher.tokenizer, teacher.positions, student.positions)
    check_long(items, collate, name=config.train_data)
    origin = _origin(own, items, processes=accelerator.num_processes)
    trajectory = config.trajectory() | origin
    if config.resume_from_checkpoint is not None:
        check_finished(Path(config.output_dir), trajectory, max_train_steps=config.max_train_steps)
    heldout = read_held_out(config, items, collate) if config.eval_steps else None
    hold = Hold(teacher, teacher.stretch(keep=config.keep_positions, factor=config.stretch_factor), own.slot)
    towers = TextTower(student, own.slot).to(accelerator.device)
    if config.gradient_checkpointing:
        student.model.activation_checkpointing_enable({"use_reentrant": False})
    wrapped, optimizer = engine.prepare(towers, lambda module: make_optimizer(module, config))
    run = Run(
        config=config, engine=engine, tokenizer=student.tokenizer, towers=towers, wrapped=wrapped, optimizer=optimizer,
        frozen=FrozenRows(student.model.embeddings.position_embedding.weight, config.keep_positions),
        contrast=None, terms=(hold.to(accelerator.device),), data=items, heldout=heldout, faults=Faults(0),
        preprocessing=None, trajectory=trajectory, origin=origin, collate=collate,
    )  # fmt: skip
    accelerator.print(describe_memory(run))
    return start_from(run)


def _find_slot(config: TrainConfig) -> OwnEncoder:
    base, options = config.pretrained_model_name_or_path, {"config": config.pipeline_config}
    own = read_encoders(base, only=config.text_encoder, **options)
    if not own:
        names = ", ".join(clip_slots(base, **options))
        raise ValueError(f"text_encoder is {config.text_encoder}, but the base has {names}; name one of these.")
    return own[0]


def open_items(config: TrainConfig, *, batch: int) -> TextItems:
    """The texts to train on; ValueError where they are too few."""
    texts = open_texts(config.train_data, seed=config.seed)
    wants = bool(config.eval_steps) and config.eval_data is None
    return TextItems(texts, name=config.train_data, seed=config.seed, global_batch=batch, held_out=wants)


def check_long(items: TextItems, collate: TextCollator, *, name: str) -> None:
    """Raise ValueError where no text is longer than the window: there is nothing to learn from them."""
    count = len(items.texts)
    numbers = range(0, count, -(-count // LOOKED_AT))
    tokenize = collate.tokenizer
    for first in range(0, len(numbers), 64):
        texts = [items.texts[number] for number in numbers[first : first + 64]]
        ids = tokenize(texts, add_special_tokens=False, verbose=False)["input_ids"]
        if any(len(one) > collate.window - 2 for one in ids):
            return
    raise ValueError(
        f"none of {len(numbers):,} texts of {name} is longer than {collate.window - 2} tokens, which the encoder reads "
        "already, so there is nothing to learn from them; give longer texts."
    )


def read_held_out(config: TrainConfig, items: TextItems, collate: TextCollator) -> HeldOutTexts | None:
    """Texts of `eval_data`, or those that `items` leaves out, in batches; None where there are too few for any."""
    if config.eval_data is None:
        texts = held_out_texts(items)[:HELD_OUT]
    else:
        found = open_texts(config.eval_data, seed=config.seed + 1)
        texts = [found[number] for number in range(min(len(found), config.eval_limit, HELD_OUT))]
    rows = [{"number": number, "key": number, "text": text} for number, text in enumerate(texts)]
    batches = [collate(rows[first : first + 32]) for first in range(0, len(rows), 32)]
    return HeldOutTexts(batches) if batches else None


def _origin(own: OwnEncoder, items: TextItems, *, processes: int) -> dict[str, Any]:
    count = len(items.texts)
    some = range(0, count, -(-count // 10_000))
    words = [sorted(own.encoder.tokenizer.get_vocab().items()), own.encoder.tokenizer.pad_token_id]
    return {
        "number of processes": processes,
        "engine": "whole",
        "weights of the start": weights_fingerprint(own.encoder.model.state_dict()),
        "tokenizer of the start": fingerprint([json.dumps(words).encode()]),
        "read by the pipeline": f"{own.family}, {own.slot.encoder}: {own.slot.layer}, {own.slot.pooled}",
        "layout": LAYOUT,
        "number of texts of train_data": count,
        "texts of train_data": fingerprint(items.texts[number].encode() for number in some),
    }


def describe_memory(run: Run) -> str:
    """How much memory the run takes, counted: weights three times and AdamW's state, and what a batch keeps."""
    model = run.towers.clip
    weights = sum(parameter.numel() for parameter in model.parameters())
    config, tokens = model.config, run.config.train_batch_size * run.tokenizer.model_max_length
    layer = (8 * config.hidden_size + 2 * config.intermediate_size) + config.num_attention_heads * 248
    kept = tokens * (2 * config.hidden_size if run.config.gradient_checkpointing else layer) * config.num_hidden_layers
    return (
        f"memory, counted: {4 * 6 * weights / GIB:.1f} GiB for weights, target and AdamW, at most "
        f"{4 * kept / GIB:.1f} GiB for a batch"
    )


def finish(run: Run, *, command: list[str], row: dict[str, float]) -> None:
    """Write the encoder folder."""
    config, own = run.config, run.terms[0]
    weights = "the encoder is not written: the model after the last step"
    check_finite(run.towers.clip.state_dict(), what=weights, advice=describe_diverged(run.folder))
    provenance = make_provenance(config, command=command, processes=run.accelerator.num_processes, final=row)
    provenance |= {"origin": run.origin} | ({"resumed": run.versions} if len(run.versions) > 1 else {})
    provenance["data"] = {"texts": len(run.data.texts), "skipped": dict(run.data.texts.left_out)}
    model = run.towers.clip.eval()
    model.config.pad_token_id = run.tokenizer.pad_token_id
    encoder = TextEncoder(model.cpu(), run.tokenizer, own.teacher.known_words, provenance, own.teacher.projection)
    scratch = run.folder / ".encoder.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        encoder.save(scratch)
        (scratch / "README.md").write_text(_card(run), encoding="utf-8")
        move_in(scratch, run.folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    skipped = describe_counts(run.data.texts.left_out)
    print(f"encoder written to {run.folder}" + (f" ({skipped} left out)" if skipped else ""))


def _card(run: Run) -> str:
    base = run.config.pretrained_model_name_or_path or "the embedded base"
    base = Path(base).name if Path(base).exists() else base  # the rest of a path says nothing elsewhere
    return (
        f"# {run.folder.resolve().name}\n\n`{run.config.text_encoder}` of {base}, "
        f"lengthened to {run.tokenizer.model_max_length} tokens on text alone by `train_encoder`: "
        f"{run.config.max_train_steps} steps of {run.pairs} texts. It belongs to this base and its fine-tunes: "
        "`debias_sd.load_debias_pipeline(BASE, FOLDER)`. `provenance.json` has all settings and versions.\n"
    )
