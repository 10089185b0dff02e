"""One prompt, one seed, several text encoders: the pictures, and for each sentence whether it was drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from debias_sd.pipelines.guidance import check_guidance
from debias_sd.pipelines.load import DiffusionPipeline, Source, with_text_encoder
from debias_sd.prompts.batch import SHORT
from debias_sd.sentences import split_sentences
from debias_sd.shapes.check import judge
from debias_sd.shapes.reading import read_sentence
from debias_sd.shapes.render import SIDE
from debias_sd.shapes.scene import Thing
from debias_sd.tokens import check_text

TITLES = {"base": "CLIP", "stretched": "CLIP, stretched", "long-clip": "Long-CLIP", "debias": "DeBias-CLIP"}
_READS = "tokens that the encoder reads"

OnStep = Callable[[int, torch.Tensor], None]


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of the prompt, its first and last token (the start token is number 0), and the things it names."""

    text: str
    first: int
    last: int
    things: tuple[Thing, ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One encoder's picture, uint8 [side, side, 3], and how many of each sentence's things are in it."""

    name: str
    window: int
    image: np.ndarray
    drawn: tuple[int, ...]

    @property
    def title(self) -> str:
        return TITLES.get(self.name, self.name)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All panels of one prompt."""

    prompt: str
    seed: int
    sentences: tuple[Sentence, ...]
    panels: tuple[Panel, ...]

    def mark(self, panel: Panel, index: int) -> str:
        """One of: drawn, `1 of 2` (things), missing, not read (missing, and after the window), not judged."""
        sentence, drawn = self.sentences[index], panel.drawn[index]
        if not sentence.things:
            return "not judged"
        if drawn == len(sentence.things):
            return "drawn"
        if drawn:
            return f"{drawn} of {len(sentence.things)}"
        return "not read" if sentence.first >= panel.window - 1 else "missing"

    def total(self, panel: Panel) -> tuple[int, int]:
        """Sentences drawn, and sentences that could be judged."""
        marks = [self.mark(panel, index) for index in range(len(self.sentences))]
        return marks.count("drawn"), len(marks) - marks.count("not judged")

    def total_in_words(self, panel: Panel) -> str:
        """`3 of 5`, or that no sentence could be judged: 0 of 0 would look like a measurement."""
        drawn, judged = self.total(panel)
        return f"{drawn} of {judged}" if judged else "not judged"

    def as_json(self) -> dict[str, Any]:
        """Plain data: every sentence with its place and its mark per encoder."""
        return {
            "prompt": self.prompt,
            "seed": self.seed,
            "sentences": [
                {
                    "text": sentence.text,
                    "tokens": [sentence.first, sentence.last],
                    "names": [thing.name for thing in sentence.things],
                    "marks": {panel.name: self.mark(panel, index) for panel in self.panels},
                }
                for index, sentence in enumerate(self.sentences)
            ],
            "encoders": {
                panel.name: dict(zip(("drawn", "judged"), self.total(panel), strict=True)) | {"window": panel.window}
                for panel in self.panels
            },
        }


def sentences_of(prompt: str, tokenizer: Any) -> tuple[Sentence, ...]:
    """Split a prompt, count where each sentence is in tokens, and read what it names."""
    sentences, first = [], 1
    for text in split_sentences(prompt):
        ids = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        sentences.append(Sentence(text, first, first + len(ids) - 1, tuple(read_sentence(text))))
        first += len(ids)
    return tuple(sentences)


def is_checked(pipe: DiffusionPipeline) -> bool:
    """Whether the pictures of `pipe` are the embedded world's, which the checker reads."""
    unet = pipe.components.get("unet")
    return unet is not None and unet.config.sample_size * pipe.vae_scale_factor == SIDE


def pipes_of(base: DiffusionPipeline, encoders: Mapping[str, Source | None]) -> dict[str, DiffusionPipeline]:
    """One pipeline an encoder (None: `base` itself), sharing all of it but text encoder, tokenizer and scheduler."""
    pipes = {
        name: base if e is None else with_text_encoder(base, e, min_positions=SHORT) for name, e in encoders.items()
    }
    for pipe in pipes.values():
        pipe.set_progress_bar_config(disable=True)
    return pipes


@torch.inference_mode()
def draw_prompt(
    pipe: DiffusionPipeline,
    prompt: str,
    *,
    seed: int,
    steps: int,
    guidance: float,
    true_cfg: float | None = None,
    negative: str = "",
    on_step: OnStep = lambda done, latents: None,
    **options: object,
) -> np.ndarray:
    """One picture, uint8 [height, width, 3]; `on_step` gets the number of steps done and the latents, and may raise.

    `true_cfg` is what FLUX follows a negative prompt with; `options` go to the pipeline (height, width).
    Raises ValueError when the picture holds NaN or infinity, and when the negative prompt would not be used.
    """
    check_guidance(pipe, scale=guidance, true_scale=true_cfg, negative=negative)
    if true_cfg is not None:
        options["true_cfg_scale"] = true_cfg
    if negative:
        options["negative_prompt"] = negative

    def after_step(_: DiffusionPipeline, step: int, __: object, tensors: dict[str, Any]) -> dict[str, Any]:
        on_step(step + 1, tensors["latents"])
        return tensors

    output = pipe(
        prompt,
        generator=torch.Generator("cpu").manual_seed(seed),
        num_inference_steps=steps,
        guidance_scale=guidance,
        output_type="np",
        callback_on_step_end=after_step,
        **options,
    )
    image = np.asarray(output.images[0])
    if not np.isfinite(image).all():
        raise ValueError(
            "the picture holds NaN (it would be black): numbers overflowed in the UNet or the VAE; "
            "use dtype float32 or bfloat16, or less guidance."
        )
    return np.rint(255 * image).astype(np.uint8)


def drawn_in(image: np.ndarray, sentences: tuple[Sentence, ...]) -> tuple[int, ...]:
    """How many of each sentence's things are in the picture."""
    return tuple(sum(v.drawn for v in judge(image, s.things)) if s.things else 0 for s in sentences)


def sentences_for(prompt: str, base: DiffusionPipeline) -> tuple[Sentence, ...]:
    """The sentences of a prompt; they name no things when `base` draws pictures that the checker does not read."""
    sentences = sentences_of(prompt, base.tokenizer)
    if is_checked(base):
        return sentences
    return tuple(dataclasses.replace(sentence, things=()) for sentence in sentences)


def compare_encoders(
    prompt: str,
    encoders: Mapping[str, Source | None],
    *,
    base: DiffusionPipeline,
    seed: int = 0,
    steps: int = 25,
    guidance: float = 2.0,
    true_cfg: float | None = None,
    negative: str = "",
    side: int | None = None,
    progress: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Draw `prompt` with each encoder in `base`, same noise, and judge every sentence in every picture.

    Each encoder reads its own window; what comes after it is cut. `side`: height and width in pixels, None for what
    the pipeline draws by itself. `progress` gets the name of each encoder as its
    picture begins. Pictures of another base than the embedded world's are drawn and not judged.
    Raises ValueError for a prompt that is not valid text and for an encoder that does not fit `base`.
    """
    check_text(prompt)
    sentences = sentences_for(prompt, base)
    settings = {"seed": seed, "steps": steps, "guidance": guidance, "true_cfg": true_cfg, "negative": negative}
    settings |= {} if side is None else {"height": side, "width": side}
    panels = []
    for name, pipe in pipes_of(base, encoders).items():
        progress(name)
        image = draw_prompt(pipe, prompt, **settings)
        panels.append(Panel(name, pipe.tokenizer.model_max_length, image, drawn_in(image, sentences)))
    return Comparison(prompt, seed, sentences, tuple(panels))


def table_of(comparison: Comparison, *, width: int = 64) -> str:
    """The comparison as plain text: a line for each sentence with its place in tokens and a mark per encoder."""
    titles = [panel.title for panel in comparison.panels]
    columns = [max(11, len(title)) for title in titles]
    size = min(width, max([len(_READS), *(len(sentence.text) for sentence in comparison.sentences)]))

    def line(place: str, text: str, cells: list[str]) -> str:
        padded = [cell.ljust(column) for cell, column in zip(cells, columns, strict=True)]
        return "  ".join([place.rjust(8), text.ljust(size), *padded]).rstrip()

    rows = [line("tokens", "sentence", titles)]
    rows.append("-" * (8 + 2 + size + sum(column + 2 for column in columns)))
    for index, sentence in enumerate(comparison.sentences):
        text = sentence.text if len(sentence.text) <= size else sentence.text[: size - 1] + "…"
        marks = [comparison.mark(panel, index) for panel in comparison.panels]
        rows.append(line(f"{sentence.first}-{sentence.last}", text, marks))
    totals = [comparison.total_in_words(panel) for panel in comparison.panels]
    rows += [rows[1], line("", "sentences drawn", totals)]
    rows.append(line("", _READS, [str(panel.window) for panel in comparison.panels]))
    return "\n".join(rows)
