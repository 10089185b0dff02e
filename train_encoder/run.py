"""A run that is ready to train: models, data, optimizer, and the checkpoint that it goes on from."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from debias_sd.datasets.faults import Faults
from debias_sd.report import check_writable
from debias_sd.run_state import check_finite, note_versions
from train_encoder.bases import load_start
from train_encoder.checkpoints import check_later, find_checkpoint, load_checkpoint
from train_encoder.data import RecordPairs, ShapesPairs, open_pairs
from train_encoder.engines import check_engine, engine_of, load_states, wrap
from train_encoder.features import load_features
from train_encoder.hub import check_hub
from train_encoder.kinds import AnyTowers, kind_of
from train_encoder.late_sentences import LateSentences
from train_encoder.model import FrozenRows, stretch_start
from train_encoder.origin import data_origin, start_origin
from train_encoder.output_folder import check_finished, check_folder
from train_encoder.processes import start_processes
from train_encoder.stay_close import StayClose, freeze_copy
from train_encoder.stopping import StopRequest
from train_encoder.trackers import check_trackers
from train_encoder.zero import hide_rows, widen_temperature

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from debias_sd.measure.features.preprocessing import Preprocessing
    from train_encoder.settings import TrainConfig
    from train_encoder.texts import Texts


@dataclass
class Run:
    """All parts of a run that is ready to train, at update number `step`."""

    config: TrainConfig
    accelerator: Accelerator
    tokenizer: PreTrainedTokenizerBase
    towers: AnyTowers  # the bare module
    wrapped: torch.nn.Module  # the same one as accelerate wraps it
    optimizer: torch.optim.Optimizer
    frozen: FrozenRows | None
    stay_close: StayClose | None
    late_sentences: LateSentences | None
    data: ShapesPairs | RecordPairs
    faults: Faults  # records on disk that had to be replaced, of all processes
    preprocessing: Preprocessing  # of pictures on disk
    trajectory: dict[str, Any]  # what decides the weights: two runs with equal values are the same run
    origin: dict[str, Any]  # of it, what is not a setting: fingerprints of data and start, processes, engine
    versions: list[dict[str, Any]] = field(default_factory=list)  # of packages, by the step from which on they ran
    step: int = 0
    stop: StopRequest = field(default_factory=StopRequest)

    @property
    def folder(self) -> Path:
        return Path(self.config.output_dir)

    @property
    def texts(self) -> Texts:
        return kind_of(self.towers.clip).texts(self.tokenizer, self.config)

    @property
    def engine(self) -> str:
        return engine_of(self.accelerator)


def prepare(config: TrainConfig) -> Run:
    """Load everything, and the checkpoint to go on from; ValueError for what the user can mend."""
    check_writable(Path(config.output_dir) / "train_log.jsonl")
    check_folder(config)
    check_trackers(config.report_to)
    if config.push_to_hub:
        check_hub(config.hub_model_id)
    accelerator = start_processes(config)
    engine = engine_of(accelerator)
    check_engine(engine, config)
    began = load_start(config)
    model, tokenizer, preprocessing = began
    kind_of(model).check(config)
    named = config.pretrained_model_name_or_path or "from scratch"
    check_finite(model.state_dict(), what=f"the model {named}", advice="copy it again, or start from another one")
    origin = {"number of processes": accelerator.num_processes, "engine": engine} | start_origin(began)
    start = freeze_copy(model.text_model) if config.stay_close_weight or config.late_sentences_weight else None
    model = stretch_start(model, tokenizer, config)
    pairs = accelerator.num_processes * config.gradient_accumulation_steps
    data = open_pairs(config, preprocessing, processes=pairs)
    origin |= data_origin(data)
    trajectory = config.trajectory() | origin
    if config.resume_from_checkpoint is not None:
        check_finished(Path(config.output_dir), trajectory, max_train_steps=config.max_train_steps)
    towers = make_towers(model, config).to(accelerator.device)
    if config.freeze_image_tower:
        total = config.max_train_steps * config.train_batch_size * pairs
        count = len(data.records) if isinstance(data, RecordPairs) else total
        data.features = load_features(accelerator, towers, data, config, count=count)
    if engine == "shards":
        towers.gather_layers()
    elif engine == "deepspeed":
        widen_temperature(model)
    wrapped, optimizer = wrap(accelerator, towers, make_optimizer(towers, config), config, engine=engine)
    if start is not None:
        start.to(accelerator.device)
    frozen = None
    if config.stretch_factor > 1:
        frozen = FrozenRows(model.text_model.embeddings.position_embedding.weight, config.keep_positions)
        if engine == "deepspeed":
            hide_rows(frozen.table, frozen.rows)
    advice = "repair or drop them (skip_missing_images: true leaves missing ones out)"
    faults = Faults(data.fault_limit if isinstance(data, RecordPairs) else 0, advice=advice)
    stay_close = StayClose(start) if config.stay_close_weight else None
    late_sentences = LateSentences(start, tokenizer) if config.late_sentences_weight else None
    run = Run(
        config,
        accelerator,
        tokenizer,
        towers,
        wrapped,
        optimizer,
        frozen,
        stay_close,
        late_sentences,
        data,
        faults,
        preprocessing,
        trajectory,
        origin,
    )
    torch.manual_seed(config.seed + accelerator.process_index)
    resume(run)
    if not config.overwrite_output_dir:
        check_later(run.folder, run.step)
    return run


def make_towers(model: torch.nn.Module, config: TrainConfig) -> AnyTowers:
    """Both towers in training mode, frozen, recomputed and compiled as `config` says.

    All of it before they are wrapped: DistributedDataParallel waits for the gradient of every parameter that wants one.
    """
    towers = kind_of(model).towers(model, config).train()
    if config.freeze_image_tower:
        for module in towers.image_modules():
            module.requires_grad_(False)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if config.torch_compile:
        # Layer by layer: one small graph that all layers share, whatever the lengths.
        for layer in (*model.text_model.encoder.layers, *model.vision_model.encoder.layers):
            layer.compile(dynamic=True)
    dropout = max(model.config.text_config.attention_dropout, model.config.vision_config.attention_dropout)
    if dropout and config.gradient_accumulation_steps > 1:
        raise ValueError(
            f"the pretrained model has attention_dropout {dropout}, with gradient_accumulation_steps every pair is "
            "read twice and must give the same features; set attention_dropout in its config.json to 0."
        )
    return towers


def make_optimizer(towers: AnyTowers, config: TrainConfig) -> torch.optim.AdamW:
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
    load_states(run.towers, run.optimizer, (state["towers"], state["optimizer"]), engine=run.engine)
    run.step = state["step"]
    run.faults.add(json.loads(state.get("faults", "[]")))
    torch.set_rng_state(state["rng"][run.accelerator.process_index])
    print_once(f"resuming from {path} at step {run.step}")
    run.versions, warning = note_versions(json.loads(state["versions"]), since=run.step)
    if warning:
        print_once(f"warning: {warning}")
