"""A run: all parts that `prepare.py` loads and `train.py` steps, at update number `step`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from train_encoder.model.families import family_of
from train_encoder.processes import StopRequest

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from debias_sd.datasets.records import Faults
    from debias_sd.measure.features.preprocessing import Preprocessing
    from train_encoder.data.batches import Texts
    from train_encoder.data.pairs import Pairs
    from train_encoder.engine import Engine, FrozenRows
    from train_encoder.model.families import Towers
    from train_encoder.settings import TrainConfig
    from train_encoder.terms.contrast import Contrast
    from train_encoder.terms.pair_term import PairTerm
    from train_encoder.watch.heldout import HeldOut


@dataclass
class Run:
    """All parts of a run that is ready to train."""

    config: TrainConfig
    engine: Engine
    tokenizer: PreTrainedTokenizerBase
    towers: Towers  # the bare module
    wrapped: torch.nn.Module  # the same one as accelerate wraps it
    optimizer: torch.optim.Optimizer
    frozen: FrozenRows | None
    contrast: Contrast
    terms: tuple[PairTerm, ...]  # the other terms of the loss
    data: Pairs
    heldout: HeldOut | None  # what retrieval is measured on, in the main process
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
        return family_of(self.towers.clip).texts(self.tokenizer, self.config)

    @property
    def accelerator(self) -> Accelerator:
        return self.engine.accelerator

    @property
    def pairs(self) -> int:
        """Pairs of a step, of all processes."""
        return self.config.train_batch_size * self.config.contrast_chunks * self.accelerator.num_processes
