"""Hold: what the pipeline of the initial checkpoint reads of a text by sentences, distilled into one long window.

Held are the states at the layer that the pipeline's denoiser reads: of the words, those of the first window as it is
and of each later sentence alone; of the end token and the pads, that of the whole text's end (laid out by
`debias_sd/prompts/states.py`); of a prompt that fits in the window, the empty one too, all as they are; and the pooled
vector where one is read. Nothing of a picture is needed for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from debias_sd.prompts.own_encoders import read_slot
from debias_sd.prompts.states import Encoded, Row, encode_sentences
from train_encoder.pair_terms import PairTerm

if TYPE_CHECKING:
    from debias_sd.encoder import TextEncoder
    from debias_sd.pipelines.families import Slot

LAYOUT = "sentence"
PLACES = (0, 77, 134, 191, 248)  # tokens between which words are measured apart


class Hold(PairTerm):
    """The squared distance to the target, relative to its size: of words, of end and pads, of the pooled vector."""

    name: ClassVar[str] = "hold"

    def __init__(self, teacher: TextEncoder, whole: TextEncoder, slot: Slot) -> None:
        """`teacher` is the initial checkpoint, `whole` the same, stretched and not trained."""
        super().__init__()
        self.models = torch.nn.ModuleList([teacher.model, whole.model]).eval().requires_grad_(False)
        self.teacher, self.whole, self.slot = teacher, whole, slot
        tokenizer, self.window = teacher.tokenizer, teacher.positions
        pads = [tokenizer.pad_token_id] * (self.window - 2)
        self.fill: Row = (tokenizer.bos_token_id, tokenizer.eos_token_id, *pads)

    @torch.no_grad()
    def target(self, batch: dict[str, Any]) -> Encoded:
        """States [b, L, w] and pooled vectors [b, p], float32, as far as the slot has them."""
        length = batch["input_ids"].shape[1]
        (found,) = encode_sentences(
            lambda ids: read_slot(self.teacher, self.slot, ids),
            [batch["rows"]],
            [batch["firsts"]],
            fill=self.fill,
            count=-(-length // self.window),
            layout=LAYOUT,
            read_whole=lambda ids: read_slot(self.whole, self.slot, ids),
        )
        states = found.states
        if states is not None:
            states = states[:, :length].float()
            fits = torch.tensor([len(rows) == 1 and len(rows[0]) == self.window for rows in batch["rows"]])
            states[fits.to(states.device), self.window :] = states[fits.to(states.device), self.window - 1, None]
        return Encoded(states, None if found.pooled is None else found.pooled.float())

    def loss(self, batch: dict[str, Any], out: dict[str, Tensor]) -> Tensor:
        target, parts = self.target(batch), []
        if target.states is not None:
            slots = torch.arange(target.states.shape[1], device=target.states.device)
            words = slots < batch["lengths"][:, None] - 1
            after = ~words & (slots < out["reach"][:, None])
            away, size = _squares(out["states"], target.states)
            parts += [((away * some).sum(1) / (size * some).sum(1)).mean() for some in (words, after)]
        if target.pooled is not None:
            away, size = _squares(out["pooled"], target.pooled)
            parts.append((away / size).mean())
        return torch.stack(parts).sum()

    @torch.no_grad()
    def by_place(self, batch: dict[str, Any], out: dict[str, Tensor]) -> dict[str, tuple[float, float]]:
        """Sums of squares, of the distance and of the target: words by place, end and pads, pooled."""
        target, sums = self.target(batch), {}
        if target.states is not None:
            slots = torch.arange(target.states.shape[1], device=target.states.device)
            words = slots < batch["lengths"][:, None] - 1
            away, size = _squares(out["states"], target.states)
            for first, after in zip(PLACES, PLACES[1:], strict=False):
                some = words & (slots >= first) & (slots < after)
                sums[f"words_{first}"] = (float((away * some).sum()), float((size * some).sum()))
            some = ~words & (slots < out["reach"][:, None])
            sums["end"] = (float((away * some).sum()), float((size * some).sum()))
        if target.pooled is not None:
            away, size = _squares(out["pooled"], target.pooled)
            sums["pooled"] = (float(away.sum()), float(size.sum()))
        return sums


def _squares(found: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of squares over the last axis, of the difference and of the target, in float32."""
    return ((found.float() - target) ** 2).sum(-1), (target**2).sum(-1)
