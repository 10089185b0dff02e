"""The models of one app: one base pipeline, its encoders by name, the operator's judge; what is known of each.

UNet, VAE and memory are shared. A judge's marks are as good as its model and its thresholds. Of the embedded encoders
a report says what they draw in the mean over many prompts. Sources are told by name, never by the operator's paths.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import threading
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from app.request import Settings
from app.waiting import Listeners, Queue
from debias_sd import load_debias_pipeline
from debias_sd.commands.arguments import load_named
from debias_sd.commands.generate import device_and_dtype
from debias_sd.comparison import TITLES, is_checked, judge_for
from debias_sd.drawing import Variant, variants_in
from debias_sd.encoder import TextEncoder
from debias_sd.encoder_folder import find_encoder_folder
from debias_sd.measure.judges import Judge, load_judge
from debias_sd.report import Report, hash_file
from debias_sd.sentences import split_sentences
from debias_sd.tokens import copy_tokenizer, unknown_words

_WORD = re.compile(r"[^ \t\r\n]+")  # fewer separators than the tokenizer knows: a word here may be several of its own
_REMEMBERED, _LONG_WORD = 20_000, 100  # words per encoder, and their length in characters


@dataclasses.dataclass(frozen=True)
class Ruler:
    """What the page needs to count tokens for one encoder: a title, a window, and a tokenizer of its own."""

    title: str
    window: int
    tokenizer: PreTrainedTokenizerBase
    words: dict[str, list[int]] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Where the tokens of a word begin, as far as it was counted; one for all rulers of one vocabulary."""
    reads_all: bool = False
    """A prompt is read to its end, in parts."""

    @property
    def reach(self) -> int | None:
        """The tokens that are read in all, None for every one of a prompt."""
        return None if self.reads_all else self.window

    def token_starts(self, prompt: str) -> list[int]:
        """The first character of every token of `prompt`, start and end token not counted.

        CLIP's tokens never reach over white space: each word is split once and remembered, so that a key stroke in the
        longest prompt costs the word that it changed. The caller holds the models' `counting` lock.
        """
        if not self._is_by_words:
            return self._split([prompt])[0]
        words = [(found.start(), found[0]) for found in _WORD.finditer(prompt)]
        new = list(dict.fromkeys(word for _, word in words if word not in self.words))
        split = dict(zip(new, self._split(new), strict=True)) if new else {}
        starts = [
            start + offset for start, word in words for offset in (split[word] if word in split else self.words[word])
        ]
        if len(self.words) + len(split) > _REMEMBERED:
            self.words.clear()
        self.words.update((word, offsets) for word, offsets in split.items() if len(word) <= _LONG_WORD)
        return starts

    def _split(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, split_special_tokens=True, verbose=False
        )
        return [[start for start, _ in offsets] for offsets in encoded["offset_mapping"]]

    @property
    def _is_by_words(self) -> bool:
        """Whether a text's tokens are those of its words; a learnt token that holds white space is in the way."""
        added = (token.content for token in self.tokenizer.added_tokens_decoder.values())
        return isinstance(self.tokenizer, CLIPTokenizer) and not any(_WORD.fullmatch(text) is None for text in added)

    def sentence_spans(self, prompt: str) -> list[tuple[int, int]]:
        """First and last token of every sentence of `prompt`, by the characters at which its tokens begin; 1 is the
        first after the start token."""
        starts, spans, place, slot = self.token_starts(prompt), [], 0, 1
        for sentence in split_sentences(prompt):
            end = _end_of(sentence, prompt, place)
            count = bisect_left(starts, end) - bisect_left(starts, place)
            if count:
                spans.append((slot, slot + count - 1))
            slot, place = slot + count, end
        return spans


def _end_of(sentence: str, prompt: str, place: int) -> int:
    """Where `sentence`, whose white space was folded, ends in `prompt` from character `place` on."""
    for word in sentence.split():
        place = prompt.index(word, place) + len(word)
    return place


REPORT = Path(__file__).parent.parent / "results/sentences/guidance-2.json"
_PARTS = {"chunked": "base-chunked", "sentences": "base-by-sentence", "stretched": "base-stretched"}


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a report says of the encoders that are loaded: the share of sentences drawn, in percent, over `prompts`."""

    prompts: int
    drawn: dict[str, float]
    steps: int
    guidance: float


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
        known_words: Collection[str] | None = None,
        measured: Measured | None = None,
    ) -> None:
        self.base, self.variants, self.queue, self.listeners = base, variants, Queue(), Listeners()
        self.pipes = {name: variant.pipe for name, variant in variants.items()}
        self.judge, self.about_judge, self.sources = judge or judge_for(base), about_judge, sources
        self.known_words, self.measured = known_words, measured
        self.is_ending = False
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
            known_words=next((e.known_words for e in encoders.values() if isinstance(e, TextEncoder)), None),
            measured=measured_in(REPORT, settings.encoders) if settings.is_embedded else None,
        )

    def unknown_words(self, prompt: str) -> tuple[str, ...]:
        """The words of `prompt` that the embedded models were never trained on."""
        return unknown_words(prompt, self.known_words)

    @property
    def reads_t5(self) -> bool:
        """Whether T5 reads the prompt too, in every panel alike; what is counted is CLIP's."""
        return any("T5" in type(part).__name__ for part in self.base.components.values())

    def stop(self) -> None:
        """Stop every run after its current step, for the end of the app: Python waits for the drawing thread."""
        self.is_ending = True
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


def measured_in(path: Path, encoders: Mapping[str, str]) -> Measured | None:
    """The report's means of the embedded encoders whose weights are those that it measured; None without a report."""
    if not path.is_file():
        return None
    report, drawn = Report.read(path), {}
    for name, source in encoders.items():
        found = report.encoders.get(_PARTS.get(source, source))
        if found is None:
            continue
        weights = find_encoder_folder("base" if source in _PARTS else source) / "model.safetensors"
        if found["sha256"] == hash_file(weights):
            drawn[name] = found["judges"]["checker"]["all"]
    settings = report.settings
    return Measured(settings["count"], drawn, settings["steps"], settings["guidance"])


_ABSOLUTE = r"(?:[A-Za-z]:[\\/]|\\\\|~?/(?!/))"
_QUOTED = re.compile(rf"(['\"`])({_ABSOLUTE}[^'\"`]*)\1")
_BELOW = r"(?:[\\/][^\s'\"`,;:()<>|]+)?"
_PLAIN = re.compile(rf"(?<![\w/.\\]){_ABSOLUTE}[^\s'\"`,;:()<>|]+")


def name_of(source: str) -> str:
    """The last part of a path or a hub id.

    >>> name_of("/home/me/my models/clip/"), name_of("C:\\\\models\\\\clip"), name_of("openai/clip")
    ('clip', 'clip', 'clip')
    """
    return re.split(r"[\\/]", source.rstrip("\\/"))[-1]


def names_only(text: str, sources: Sequence[str] = ()) -> str:
    """`text` with the last part in place of every absolute path, and of `sources`: what the operator named, as it is.

    >>> names_only("encoder /home/me/runs/debias holds NaN; see '/home/me/my runs/x.json' or https://a.org/b.")
    "encoder debias holds NaN; see 'x.json' or https://a.org/b."
    >>> names_only("judge clip:/my models/judge fails and/or 1/2 is read", ["/my models/judge"])
    'judge clip:judge fails and/or 1/2 is read'
    """
    text = _QUOTED.sub(lambda found: found[1] + name_of(found[2]) + found[1], text.replace("file://", ""))
    for source in sorted(sources, key=len, reverse=True):
        if re.search(r"[\\/]", source):  # it may hold spaces, and something in it may be meant
            text = re.sub(re.escape(source) + _BELOW, lambda found: name_of(found[0]), text)
    return _PLAIN.sub(lambda found: name_of(found[0]), text)
