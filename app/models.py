"""The models of one app: one base pipeline, and an encoder a name; UNet, VAE and memory are shared."""

from __future__ import annotations

import copy
import dataclasses
import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedTokenizerBase

from app.judging import about_judge, load_for
from app.line import Line
from app.listeners import Listeners
from app.settings import Settings

if TYPE_CHECKING:
    from app.run import Run
from debias_sd import load_debias_pipeline
from debias_sd.commands.encoder_names import load_named
from debias_sd.comparison import TITLES, is_checked, judge_for, pipes_of
from debias_sd.measure.judges import Judge


@dataclasses.dataclass(frozen=True)
class Ruler:
    """What the page needs to count tokens for one encoder: a title, a window, and a tokenizer of its own."""

    title: str
    window: int
    tokenizer: PreTrainedTokenizerBase
    words: dict[str, list[int]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Where the tokens of a word begin, as far as `app.rulers` has counted; one for all rulers of one vocabulary."""


class Models:
    """Pipelines by encoder name, the line in front of them, and tokenizers that the drawing thread never touches."""

    def __init__(
        self,
        pipes: dict[str, object],
        base: object,
        *,
        judge: Judge | None = None,
        about_judge: dict[str, Any] | None = None,
        sources: Sequence[str] = (),
    ) -> None:
        self.base, self.pipes, self.line, self.listeners = base, pipes, Line(), Listeners()
        self.judge, self.about_judge, self.sources = judge or judge_for(base), about_judge, sources
        self.example: Run | None = None
        self.running: list[Run] = []
        self.is_checked = is_checked(base)
        # A tokenizer that two threads use raises "Already borrowed": the page counts with copies, one caller at a time.
        self.counting = threading.Lock()
        words: dict[str, dict[str, list[int]]] = {}  # encoders of one vocabulary count each word once
        self.rulers = {
            name: Ruler(
                TITLES.get(name, name),
                pipe.tokenizer.model_max_length,
                copy.deepcopy(pipe.tokenizer),
                words.setdefault(_vocabulary_of(pipe.tokenizer), {}),
            )
            for name, pipe in pipes.items()
        }

    @classmethod
    def load(cls, settings: Settings) -> Models:
        """Load what the operator configured; ValueError with one sentence for every fault."""
        if not settings.is_embedded and settings.encoders == Settings().encoders:
            raise ValueError(
                f"no encoder is named for base {settings.base}; give --encoders NAME=FOLDER, or NAME=base for its own."
            )
        device = _device_of(settings.device)
        encoders = {
            name: load_named(source, base=settings.base, flag="--encoders")
            for name, source in settings.encoders.items()
        }  # before the base: a wrong name should not cost a long load
        judge = load_for(settings)
        base = load_debias_pipeline(settings.base, "base", torch_dtype=getattr(torch, settings.dtype)).to(device)
        base.set_progress_bar_config(disable=True)
        return cls(
            pipes_of(base, encoders),
            base,
            judge=judge,
            about_judge=about_judge(judge, settings),
            sources=settings.sources,
        )

    def stop(self) -> None:
        """Stop every run after its current step, for the end of the app: Python waits for the drawing thread."""
        for run in tuple(self.running):
            run.stop.set()


def _vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """What decides how a text is split, and nothing of padding and length."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    added = sorted(token["content"] for token in parts["added_tokens"])
    return json.dumps([added, parts["normalizer"], parts["pre_tokenizer"], parts["model"]])


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"--device {name} is not there; use cpu, or cuda where PyTorch sees a GPU.") from None
    return device
