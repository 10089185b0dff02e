"""The models of one app: one base pipeline, its encoders by name, the operator's judge, and what the page says of them.

UNet, VAE and memory are shared. A judge's marks are as good as its model and its thresholds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import threading
from collections.abc import Sequence
from html import escape
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from app.settings import Settings, name_of, names_only
from app.waiting import Listeners, Queue
from debias_sd import load_debias_pipeline
from debias_sd.commands.arguments import load_named
from debias_sd.commands.generate import device_and_dtype
from debias_sd.comparison import TITLES, is_checked, judge_for
from debias_sd.drawing import Variant, variants_in
from debias_sd.measure.judges import Judge, load_judge
from debias_sd.tokens import copy_tokenizer


@dataclasses.dataclass(frozen=True)
class Ruler:
    """What the page needs to count tokens for one encoder: a title, a window, and a tokenizer of its own."""

    title: str
    window: int
    tokenizer: PreTrainedTokenizerBase
    words: dict[str, list[int]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Where the tokens of a word begin, as far as `app.rulers` has counted; one for all rulers of one vocabulary."""
    reads_all: bool = False
    """A prompt is read to its end, in parts."""

    @property
    def reach(self) -> int | None:
        """The tokens that are read in all, None for every one of a prompt."""
        return None if self.reads_all else self.window


class Models:
    """Pipelines by encoder name, the queue in front of them, and tokenizers that the drawing thread never touches."""

    def __init__(
        self,
        variants: dict[str, Variant],
        base: object,
        *,
        judge: Judge | None = None,
        about_judge: dict[str, Any] | None = None,
        sources: Sequence[str] = (),
    ) -> None:
        self.base, self.variants, self.queue, self.listeners = base, variants, Queue(), Listeners()
        self.pipes = {name: variant.pipe for name, variant in variants.items()}
        self.judge, self.about_judge, self.sources = judge or judge_for(base), about_judge, sources
        self.stops: set[threading.Event] = set()
        """Those of the runs that are under way."""
        self.is_checked = is_checked(base)
        # A tokenizer that two threads use raises "Already borrowed": the page counts with copies, one caller at a time.
        self.counting = threading.Lock()
        words: dict[str, dict[str, list[int]]] = {}  # encoders of one vocabulary count each word once
        self.rulers = {
            name: Ruler(
                TITLES.get(name, name),
                variant.window,
                copy_tokenizer(variant.pipe.tokenizer),
                words.setdefault(_vocabulary_of(variant.pipe.tokenizer), {}),
                reads_all=variant.reach is None,
            )
            for name, variant in variants.items()
        }

    @classmethod
    def load(cls, settings: Settings) -> Models:
        """Load what the operator configured; ValueError with one sentence for every fault."""
        if not settings.is_embedded and settings.encoders == Settings().encoders:
            raise ValueError(
                f"no encoder is named for base {settings.base}; give --encoders NAME=FOLDER, or NAME=base for its own."
            )
        device, dtype = device_and_dtype(argparse.Namespace(device=settings.device, dtype=settings.dtype))
        encoders = {
            name: load_named(source, base=settings.base, flag="--encoders")
            for name, source in settings.encoders.items()
        }  # before the base: a wrong name should not cost a long load
        judge = load_for(settings)
        base = load_debias_pipeline(settings.base, "base", torch_dtype=dtype).to(device)
        base.set_progress_bar_config(disable=True)
        return cls(
            variants_in(base, encoders),
            base,
            judge=judge,
            about_judge=about_judge(judge, settings),
            sources=settings.sources,
        )

    def stop(self) -> None:
        """Stop every run after its current step, for the end of the app: Python waits for the drawing thread."""
        for stop in tuple(self.stops):
            stop.set()


def _vocabulary_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """What decides how a text is split, and nothing of padding and length."""
    parts = json.loads(tokenizer.backend_tokenizer.to_str())
    added = sorted(token["content"] for token in parts["added_tokens"])
    return json.dumps([added, parts["normalizer"], parts["pre_tokenizer"], parts["model"]])


def load_for(settings: Settings) -> Judge | None:
    """The judge that the operator named, or None; ValueError with one sentence."""
    if settings.judge is None:
        return None
    judge = load_judge(settings.judge, device=settings.device, dtype=getattr(torch, settings.dtype))
    if settings.judge_report is None:
        return judge
    from debias_sd.measure.judges.calibration import read_thresholds

    thresholds = read_thresholds([settings.judge_report], judge)
    if thresholds is None:
        raise ValueError(
            f"report {settings.judge_report} is not about judge {judge.name}; calibrate it: debias-sd calibrate."
        )
    return dataclasses.replace(judge, thresholds=thresholds)


def about_judge(judge: Judge | None, settings: Settings) -> dict[str, Any] | None:
    """What the page, the API and all that is taken along say of the judge.

    Its own name is that of its folder and the one above; a page that others reach leaves the second out.
    """
    if judge is None:
        return None
    kind, _, source = judge.name.partition(":")
    name = names_only(judge.name) if settings.is_private else f"{kind}:{name_of(source)}"
    thresholds = dataclasses.asdict(judge.thresholds)
    thresholds["source"] = names_only(thresholds["source"], settings.sources)
    return {"name": name, "meaning": judge.meaning, "thresholds": thresholds}


_MARKS = (
    "✓ drawn, ◐ in part, ✕ missing, ? unsure, – not read (after the window), · not judged. Late details: "
    "what the second half of the sentences adds to the first one. In brackets: 95 % interval over seeds."
)


def judged_by(models: Models) -> str:
    """Who says what is drawn, and what the marks mean; HTML."""
    if models.is_checked:
        return _MARKS
    about = models.about_judge
    if about is None:
        return (
            "Real pictures are not judged here; whoever starts the app can name a judge. Hover or focus a sentence to "
            "see where its words acted."
        )
    return (
        f"Judged by {escape(about['name'])}: {escape(about['meaning'])}; thresholds: "
        f"{escape(about['thresholds']['source'])}. {_MARKS}"
    )


def rulers_note(models: Models) -> str:
    """What the rulers count; and who else reads the prompt, which no ruler shows."""
    others = any("T5" in type(part).__name__ for part in models.base.components.values())
    also = " T5 reads the prompt too, in every panel alike; the rulers are those of CLIP." if others else ""
    return f"Tokens that each encoder reads; the start and the end token, two of each window, are not counted.{also}"


def examples_note(settings: Settings) -> str | None:
    """Where the examples come from, where that is not seen at once."""
    if settings.is_embedded:
        return None
    return "The long captions that come with the app have the form of the paper's figure, not its wording."
