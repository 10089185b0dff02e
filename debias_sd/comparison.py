"""One prompt, one seed, several text encoders: the pictures, and for each sentence whether it was drawn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from debias_sd.drawing import OnStep, Variant, draw, variants_in
from debias_sd.measure.judges import DRAWN, Judge, Verdict, unjudged
from debias_sd.measure.judges.checker import CheckerJudge
from debias_sd.pipelines.load import DiffusionPipeline, Source
from debias_sd.pipelines.options import check_guidance
from debias_sd.sentences import split_sentences
from debias_sd.shapes.caption import read_sentence
from debias_sd.shapes.render import SIDE
from debias_sd.shapes.scene import Thing
from debias_sd.tokens import check_text

TITLES = {
    "base": "CLIP", "stretched": "CLIP, stretched", "chunked": "CLIP, chunked", "sentences": "CLIP, by sentences",
    "long-clip": "Long-CLIP", "debias": "DeBias-CLIP",
}  # fmt: skip
NO_JUDGE = "the checker reads pictures of the embedded world only, and no judge of real pictures is named"
_READS = "tokens that the encoder reads"


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence of the prompt, its first and last token (the start token is number 0), and the things it names."""

    text: str
    first: int
    last: int
    things: tuple[Thing, ...]


@dataclasses.dataclass(frozen=True)
class Panel:
    """One encoder's picture, uint8 [height, width, 3], and the verdict on each sentence of the prompt.

    `window`: the tokens that the encoder reads of the prompt, None for all of them.
    """

    name: str
    window: int | None
    image: np.ndarray
    verdicts: tuple[Verdict, ...]

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

    def total(self, panel: Panel) -> tuple[int, int]:
        """Sentences drawn, and sentences that could be judged."""
        return sum(v.mark == DRAWN for v in panel.verdicts), sum(v.is_judged for v in panel.verdicts)

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
                    "marks": {panel.name: panel.verdicts[index].mark for panel in self.panels},
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


def draw_prompt(
    variant: Variant,
    prompt: str,
    *,
    seed: int,
    steps: int,
    guidance: float,
    true_cfg: float | None = None,
    negative: str = "",
    side: int | None = None,
    on_step: OnStep | None = None,
) -> UInt8[np.ndarray, "height width 3"]:
    """One picture; `on_step` gets the number of steps done and the latents, and may raise.

    `true_cfg` is what FLUX follows a negative prompt with; `side` is height and width in pixels, None the pipeline's.
    Raises ValueError when the picture holds NaN or infinity, and when the negative prompt would not be used.
    """
    check_guidance(variant.pipe, scale=guidance, true_scale=true_cfg, negative=negative)
    options: dict[str, Any] = {} if true_cfg is None else {"true_cfg_scale": true_cfg}
    if side is not None:
        options |= {"height": side, "width": side}
    sampling = {"steps": steps, "guidance": guidance, "negative": negative, "on_step": on_step}
    return draw(variant, [prompt], [seed], **sampling, **options)[0]


def judge_for(base: DiffusionPipeline) -> Judge | None:
    """Who reads the pictures of `base`: the embedded world's checker, or None."""
    return CheckerJudge() if is_checked(base) else None


def judge_sentences(
    judge: Judge | None, image: np.ndarray, sentences: Sequence[Sentence], *, window: int | None
) -> tuple[Verdict, ...]:
    """The verdict on each sentence in one picture, for an encoder that reads `window` tokens, None for all."""
    if judge is None:
        return tuple(unjudged(sentence.text, NO_JUDGE) for sentence in sentences)
    found = judge.judge(Image.fromarray(image), [sentence.text for sentence in sentences])
    return tuple(v.read(first=s.first, window=window) for s, v in zip(sentences, found, strict=True))


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

    Each encoder reads its own window, and what comes after it is cut; "chunked" and "sentences" are the base's own
    encoder, which then reads everything. `side`: height and width in pixels, None for what
    the pipeline draws by itself. `progress` gets the name of each encoder as its picture begins.
    Pictures of another base than the embedded world's are drawn and not judged.
    Raises ValueError for a prompt that is not valid text and for an encoder that does not fit `base`.
    """
    check_text(prompt)
    sentences, judge = sentences_for(prompt, base), judge_for(base)
    settings = {"seed": seed, "steps": steps, "guidance": guidance, "true_cfg": true_cfg, "negative": negative}
    panels = []
    for name, variant in variants_in(base, encoders).items():
        progress(name)
        image = draw_prompt(variant, prompt, **settings, side=side)
        verdicts = judge_sentences(judge, image, sentences, window=variant.reach)
        panels.append(Panel(name, variant.reach, image, verdicts))
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
        marks = [panel.verdicts[index].mark for panel in comparison.panels]
        rows.append(line(f"{sentence.first}-{sentence.last}", text, marks))
    totals = [comparison.total_in_words(panel) for panel in comparison.panels]
    rows += [rows[1], line("", "sentences drawn", totals)]
    rows.append(line("", _READS, ["all" if panel.window is None else str(panel.window) for panel in comparison.panels]))
    return "\n".join(rows)
