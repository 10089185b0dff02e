"""A term that keeps the hidden states of late sentences close to what the start gives each in a window of its own.

Not in the papers. A UNet that was trained on the start reads a sentence as the start encodes it, and no loss says what
states a stretched encoder should have behind the start's window. `StayClose` holds those inside it; this term takes
for the others what cutting a prompt into windows would feed the UNet, distilled into the one long window.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_STOP = re.compile(r"[^\w\s]*[.!?][^\w\s]*</w>")  # `.`, `!"`, `).` where a word ends; pads are `!` without an end
_DIGIT = re.compile(r"\d</w>")


class Span(NamedTuple):
    """The tokens `first` to `behind` - 1 of caption `row`."""

    row: int
    first: int
    behind: int


class LateSentences:
    """The start's text tower, frozen (`stay_close.freeze_copy`), which reads each late sentence alone.

    A sentence ends with a token of `.`, `!` or `?` (not between two digits), is late when it begins behind the last
    word of the start's window, and is read up to the length of that window. The first sentence of a caption is none:
    pads may stand in front of it.
    """

    def __init__(self, start: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        self.start = start
        self.window: int = start.config.max_position_embeddings
        self.start_id: int = start.config.bos_token_id
        self.end_id: int = start.config.eos_token_id
        words = tokenizer.get_vocab()
        self.stops = frozenset(number for word, number in words.items() if _STOP.fullmatch(word))
        self.digits = frozenset(number for word, number in words.items() if _DIGIT.fullmatch(word))
        if not self.stops:
            raise ValueError(
                "late_sentences_weight is set and the start's tokenizer has no token for a full stop, so no sentence "
                "can be told from the next; set it to 0."
            )

    def spans(self, ids: Int[Tensor, "batch length"]) -> list[Span]:
        """Every late sentence, in order."""
        found = []
        for row, caption in enumerate(ids.tolist()):
            end, first = caption.index(self.end_id), 1
            for place in range(1, end):
                if caption[place] not in self.stops or self._is_decimal(caption, place):
                    continue
                if first >= self.window - 1:
                    found.append(Span(row, first, min(place + 1, first + self.window - 2)))
                first = place + 1
        return found

    def loss(self, ids: Int[Tensor, "batch length"], hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, ""]:
        """Return the squared distance of late sentences' `hidden` (after the final norm) to the start's.

        Relative to the latter: for each caption the sum of squares over its late sentences by the sum of squares of
        their targets, 0 for a caption without any; mean over all captions, so that the value does not depend on the
        number of processes or chunks.
        """
        spans = self.spans(ids)
        if not spans:
            return hidden[:, :0].sum()  # 0, in the graph as DistributedDataParallel asks
        rows, first, behind = torch.tensor(spans, device=ids.device).T
        places = first[:, None] + torch.arange(int((behind - first).max()), device=ids.device)
        inside = places < behind[:, None]
        places = places.where(inside, first[:, None])
        words = ids[rows[:, None], places].where(inside, self.end_id)
        alone = F.pad(F.pad(words, (1, 0), value=self.start_id), (0, 1), value=self.end_id)
        with torch.no_grad():
            target = self.start(input_ids=alone).last_hidden_state[:, 1:-1].float()
        own, read = hidden[rows[:, None], places].float(), inside[..., None]
        distance = _by_caption(((own - target) ** 2 * read).sum(dim=(1, 2)), rows, len(ids))
        size = _by_caption((target**2 * read).sum(dim=(1, 2)), rows, len(ids))
        return (distance / size.where(size > 0, 1)).mean()

    def _is_decimal(self, caption: list[int], place: int) -> bool:
        return caption[place - 1] in self.digits and caption[place + 1] in self.digits


def _by_caption(values: Float[Tensor, " spans"], rows: Int[Tensor, " spans"], count: int) -> Float[Tensor, " batch"]:
    """The sum of the spans' values for each caption."""
    return values.new_zeros(count).index_add(0, rows, values)
