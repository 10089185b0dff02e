"""What is read of the prompt: attention from the end token, sensitivity by sentence, and maps of a UNet's attention.

Attention is no proof of use, and a map is a hint where a sentence's words acted, not a verdict. Sensitivity is causal:
the pooled vector is computed again with a sentence's tokens replaced by as many commas, so that every other token keeps
its place; 1 - cosine is how far it turns.

For the maps each cross-attention layer's processor is wrapped while one picture is drawn: the layer's output is the
wrapped processor's own, so the picture stays the same bit for bit, and the probabilities are computed once more beside
it. Denoisers without cross-attention layers (the transformers of Stable Diffusion 3 and FLUX) have no maps.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from html import escape

import numpy as np
import torch
from PIL import Image

from app.look import PALETTE, SERIES
from app.models import Models, Ruler
from debias_sd.sentences import split_sentences
from debias_sd.tokens import end_positions, tokenize

_NEUTRAL = ","
_NUMBERED = 0.015  # share of the plot's width from which on a sentence has its number in it


@dataclasses.dataclass(frozen=True)
class Reading:
    """One encoder's reading. Slots count from 0, the start token; `sentences` are (first, last) slots that are read."""

    title: str
    attention: np.ndarray
    """Mean over layers and heads, from the end token to every slot up to it; sums to 1."""
    sentences: tuple[tuple[int, int], ...]
    sensitivity: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Slots:
    """A prompt in one encoder's window: ids [1, end + 1], first and last slot of every sentence that is read."""

    ids: torch.Tensor
    sentences: tuple[tuple[int, int], ...]
    neutral: int


def slots_of(ruler: Ruler, prompt: str) -> Slots:
    """Tokenize `prompt` up to its end token."""
    ids = tokenize(ruler.tokenizer, [prompt], length=ruler.window, pad_id=ruler.tokenizer.pad_token_id)
    end = int(end_positions(ids, end_id=ruler.tokenizer.eos_token_id))
    read = tuple((first, min(last, end - 1)) for first, last in ruler.sentence_spans(prompt) if first < end)
    return Slots(ids[:, : end + 1], read, ruler.tokenizer(_NEUTRAL, add_special_tokens=False)["input_ids"][0])


@torch.inference_mode()
def read_slots(title: str, model: torch.nn.Module, slots: Slots) -> Reading:
    """Read a prompt with a text model; it is copied, because kept attention weights need another implementation."""
    eager = copy.deepcopy(model).float().cpu()
    eager.set_attn_implementation("eager")
    layers = eager(input_ids=slots.ids, output_attentions=True).attentions
    attention = torch.stack([layer[0, :, -1].mean(0) for layer in layers]).mean(0).numpy()
    changed = slots.ids.repeat(len(slots.sentences) + 1, 1)
    for row, (first, last) in enumerate(slots.sentences, start=1):
        changed[row, first : last + 1] = slots.neutral
    pooled = torch.cat([eager(input_ids=part).pooler_output for part in changed.split(8)])
    pooled = torch.nn.functional.normalize(pooled, dim=-1)
    turned = (1 - pooled[1:] @ pooled[0]).clamp(min=0).tolist()
    return Reading(title, attention, slots.sentences, tuple(turned))


def read_all(models: Models, names: Sequence[str], prompt: str) -> list[Reading]:
    """The readings of the named encoders."""
    with models.counting:
        slots = {name: slots_of(models.rulers[name], prompt) for name in names}
    return [read_slots(models.rulers[name].title, models.pipes[name].text_encoder, slots[name]) for name in names]


def reading_html(readings: Sequence[Reading], prompt: str) -> str:
    """Both plots for light and dark pages, and the numbers as a table."""
    told = {
        "attention": "Attention from the end token by position, mean over layers and heads; thick: mean of a sentence",
        "sensitivity": "How far the pooled vector turns (1 - cosine) when a sentence is replaced by commas",
    }
    figures = "".join(
        f"<figure><figcaption>{words}</figcaption>"
        + "".join(
            f'<img class="{"night" if dark else "day"}" alt="{words}; the numbers are in the table below" '
            f'src="{_plot(readings, kind, dark=dark)}">'
            for dark in (False, True)
        )
        + "</figure>"
        for kind, words in told.items()
    )
    return f'<div class="plots">{figures}{_table_html(readings, prompt)}</div>'


def _plot(readings: Sequence[Reading], kind: str, *, dark: bool) -> str:
    """One plot as a PNG data address; dashed lines are the sentences' ends, between them their numbers."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    ink, rule = PALETTE["ink"][dark], PALETTE["rule"][dark]
    figure = Figure(figsize=(10, 3.1), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    axes = figure.add_subplot(facecolor="none")
    axes.margins(y=0.16)  # the sentences' numbers stand above the lines
    for reading, colour in zip(readings, SERIES[dark], strict=False):
        if kind == "attention":
            axes.plot(range(1, len(reading.attention) - 1), reading.attention[1:-1], color=colour, lw=0.8, alpha=0.5)
            values = [reading.attention[first : last + 1].mean() for first, last in reading.sentences]
        else:
            values = reading.sensitivity
        steps = np.full(len(reading.attention), np.nan)
        for (first, last), value in zip(reading.sentences, values, strict=True):
            steps[first : last + 1] = value
        axes.step(range(len(steps)), steps, where="mid", color=colour, label=reading.title, lw=2.2)
    longest = max((reading.sentences for reading in readings), key=len, default=())
    for number, (first, last) in enumerate(longest, start=1):
        axes.axvline(last + 0.5, color=rule, lw=1, ls="--", zorder=0)
        if last - first >= _NUMBERED * longest[-1][1]:  # a number needs room
            place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 8}
            axes.text((first + last) / 2, 0.98, str(number), color=ink, **place)
    if kind == "attention":
        axes.set_yscale("log")
    axes.set_xlabel("token position", color=ink)
    axes.tick_params(colors=ink, which="both")
    for spine in axes.spines.values():
        spine.set_color(rule)
    axes.legend(frameon=False, labelcolor=ink, ncols=len(readings), loc="lower left", bbox_to_anchor=(0, 1))
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")


def _table_html(readings: Sequence[Reading], prompt: str) -> str:
    """One row per sentence: share of the attention on its tokens, and sensitivity, for each encoder."""
    head = "".join(f"<th>{escape(r.title)}: attention</th><th>turns</th>" for r in readings)
    rows = []
    for index, sentence in enumerate(split_sentences(prompt)):
        cells = ""
        for reading in readings:
            if index >= len(reading.sentences):
                cells += "<td>not read</td><td>–</td>"
                continue
            first, last = reading.sentences[index]
            share = 100 * float(reading.attention[first : last + 1].sum())
            cells += f"<td>{share:.1f} %</td><td>{reading.sensitivity[index]:.3f}</td>"
        rows.append(f'<tr><td>{index + 1}</td><td dir="auto">{escape(sentence)}</td>{cells}</tr>')
    return (
        f"<details><summary>The numbers</summary><table><thead><tr><th></th><th>sentence</th>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></details>"
    )


GRID = 32  # maps are averaged at this many cells a side; finer layers are left out
_GLOW = tuple(bytes.fromhex(PALETTE["glow"][0][1:]))


class Maps:
    """Attention of all layers and steps so far: mean over heads, [tokens, GRID, GRID]; `is_on` says whether to look."""

    def __init__(self) -> None:
        self.is_on = True
        self._sum: torch.Tensor | None = None
        self._count = 0

    def add(self, probabilities: torch.Tensor) -> None:
        """Add one layer: [heads, cells, tokens], cells of a square picture in reading order."""
        side = math.isqrt(probabilities.shape[1])
        if side * side != probabilities.shape[1] or side > GRID:
            return
        mean = probabilities.float().mean(0).T.reshape(1, -1, side, side)
        mean = torch.nn.functional.interpolate(mean, size=(GRID, GRID), mode="bilinear")[0].cpu()
        self._sum = mean if self._sum is None else self._sum + mean
        self._count += 1

    def of(self, first: int, last: int) -> np.ndarray | None:
        """The attention on tokens `first` to `last`, float32 [GRID, GRID]; None when no such token was read."""
        if self._sum is None or first >= self._sum.shape[0]:
            return None
        return (self._sum[first : last + 1].sum(0) / self._count).numpy()


class _Watched:
    """A processor that lets `maps` see what its layer attends to."""

    def __init__(self, inner: object, maps: Maps) -> None:
        self.inner, self.maps = inner, maps

    def __call__(
        self,
        attn: torch.nn.Module,
        hidden_states: torch.Tensor,
        encoder_hidden_states: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        temb: torch.Tensor | None = None,
        **options: object,
    ) -> torch.Tensor:
        if self.maps.is_on and encoder_hidden_states is not None and hidden_states.shape[1] <= GRID * GRID:
            half = hidden_states.shape[0] // 2 if hidden_states.shape[0] > 1 else 0  # guidance: the prompt's comes last
            query = attn.head_to_batch_dim(attn.to_q(hidden_states[half : half + 1]))
            key = attn.head_to_batch_dim(attn.to_k(encoder_hidden_states[half : half + 1]))
            self.maps.add(attn.get_attention_scores(query, key))
        return self.inner(attn, hidden_states, encoder_hidden_states, attention_mask, temb, **options)


@contextlib.contextmanager
def watch_attention(pipe: object) -> Iterator[Maps | None]:
    """Maps of what is drawn in the block; None where the denoiser has no cross-attention layers."""
    unet = pipe.components.get("unet")
    if unet is None:
        yield None
        return
    maps, before = Maps(), unet.attn_processors
    unet.set_attn_processor(
        {name: _Watched(inner, maps) if ".attn2." in name else inner for name, inner in before.items()}
    )
    try:
        yield maps
    finally:
        unet.set_attn_processor(dict(before))


def overlay_url(values: np.ndarray) -> str:
    """A map as a PNG data address: one colour, as opaque as the attention is strong."""
    spread = float(values.max() - values.min())
    alpha = (values - values.min()) / spread if spread else np.zeros_like(values)
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = _GLOW
    pixels[..., 3] = np.rint(255 * alpha)
    content = io.BytesIO()
    Image.fromarray(pixels).resize((4 * GRID, 4 * GRID), Image.Resampling.BILINEAR).save(content, format="PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode("ascii")
