"""A run: all parts that `prepare.py` loads and `train.py` steps, at update number `step`.

Among them the contrast of a batch's pairs, those of all processes (arXiv 2602.22419). Features are gathered with
gradient, and each process computes the loss of its own rows against all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from debias_sd.losses import pair_loss, two_caption_loss
from train_encoder.model.families import family_of
from train_encoder.processes import StopRequest, gather_with_gradient

if TYPE_CHECKING:
    from accelerate import Accelerator
    from transformers import PreTrainedTokenizerBase

    from debias_sd.datasets.records import Faults
    from debias_sd.preprocessing import Preprocessing
    from train_encoder.data.batches import Texts
    from train_encoder.data.pairs import Pairs
    from train_encoder.engine import Engine, FrozenRows
    from train_encoder.model.families import Towers
    from train_encoder.pair_terms import PairTerm
    from train_encoder.settings import TrainConfig

FEATURES = ("image", "text", "short")  # one row a pair
SCALARS = ("logit_scale", "logit_bias")


class Contrast:
    """`two_caption_loss` of long and short captions, `pair_loss` where there is one caption. Its weight is 1."""

    name, weight = "contrast", 1.0

    def __init__(self, accelerator: Accelerator, config: TrainConfig) -> None:
        self.accelerator, self.config = accelerator, config

    def loss(self, features: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of this process's rows against the pairs of all, and its parts by name.

        `features` has image, text and (with two captions) short [b, d], as the towers return them, logit_scale and, of
        SigLIP's towers, logit_bias.
        """
        rows, rank = None, self.accelerator.process_index
        if self.accelerator.num_processes > 1:
            count = len(features["image"])
            rows = slice(rank * count, (rank + 1) * count)
        options = {"label_smoothing": self.config.label_smoothing, "logit_bias": features.get("logit_bias")}
        options |= {"rows": rows}
        if "short" in features:
            loss = two_caption_loss(
                *(features[name] for name in FEATURES),
                features["logit_scale"],
                short_weight=self.config.short_weight,
                rank=self.config.components,
                local_components=self.config.local_components,
                gather=gather_with_gradient,
                **options,
            )
            return loss.total, {"long": loss.long, "short": loss.short}
        image, text = (gather_with_gradient(F.normalize(features[name].float(), dim=-1)) for name in ("image", "text"))
        total = pair_loss(image, text, features["logit_scale"], **options)
        return total, {"contrastive": total}


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
    contrast: Contrast | None  # None: the terms alone
    terms: tuple[PairTerm, ...]  # the other terms of the loss
    data: Pairs
    heldout: Any  # HeldOut, `lengthen.HeldOutTexts` or None: what is measured on the way, in the main process
    faults: Faults  # records on disk that had to be replaced, of all processes
    preprocessing: Preprocessing | None  # of pictures on disk
    trajectory: dict[str, Any]  # what decides the weights: two runs with equal values are the same run
    origin: dict[str, Any]  # of it, what is not a setting: fingerprints of data and start, processes, engine
    versions: list[dict[str, Any]] = field(default_factory=list)  # of packages, by the step from which on they ran
    step: int = 0
    stop: StopRequest = field(default_factory=StopRequest)
    collate: Callable[[list[Any]], dict[str, Any]] | None = None  # None: of pairs, `data.batches.Collator`

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
