"""The models of one app: one base pipeline, and an encoder a name; UNet, VAE and memory are shared."""

from __future__ import annotations

import copy
import dataclasses
import threading

import torch
from transformers import PreTrainedTokenizerBase

from app.line import Line
from app.settings import Settings
from debias_sd import TextEncoder, load_debias_pipeline
from debias_sd.comparison import TITLES, is_checked, pipes_of


@dataclasses.dataclass(frozen=True)
class Ruler:
    """What the page needs to count tokens for one encoder: a title, a window, and a tokenizer of its own."""

    title: str
    window: int
    tokenizer: PreTrainedTokenizerBase


class Models:
    """Pipelines by encoder name, the line in front of them, and tokenizers that the drawing thread never touches."""

    def __init__(self, pipes: dict[str, object], base: object) -> None:
        self.base, self.pipes, self.line = base, pipes, Line()
        self.is_checked = is_checked(base)
        # A tokenizer that two threads use raises "Already borrowed": the page counts with copies, one caller at a time.
        self.counting = threading.Lock()
        self.rulers = {
            name: Ruler(TITLES.get(name, name), pipe.tokenizer.model_max_length, copy.deepcopy(pipe.tokenizer))
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
        own = [name for name, source in settings.encoders.items() if source == "base" and not settings.is_embedded]
        encoders = {
            name: TextEncoder.load(source) for name, source in settings.encoders.items() if name not in own
        }  # before the base: a wrong name should not cost a long load
        base = load_debias_pipeline(settings.base, "base", torch_dtype=getattr(torch, settings.dtype)).to(device)
        base.set_progress_bar_config(disable=True)
        pipes = pipes_of(base, encoders) | dict.fromkeys(own, base)
        return cls({name: pipes[name] for name in settings.encoders}, base)


def _device_of(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(f"--device {name} is not there; use cpu, or cuda where PyTorch sees a GPU.") from None
    return device
