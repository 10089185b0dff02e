"""The terms of the loss that look at one pair at a time, and what all have: weight, loss, needs of batch and towers.

Grounding is dense supervision for the embedded world's base encoder: what is in each cell, what does a sentence name?
It stands in for web-scale pre-training, where words and places are bound by the sheer number of pairs: contrast alone
binds place, colour and shape very slowly in a small model. Linear heads read three things, each a classification of
(cell,) colour, shape and size: the image tower's patch for its cell, the pooled image for all cells, and the text
tower's state at the end of each sentence for what that sentence names.

The *pooled* text state has no head: what it collects from the sentences is left to the contrastive loss, as in CLIP. A
base whose pooled state is supervised reads long captions without any fine-tuning (`docs/log.md`), which no CLIP does.
The heads are dropped after training. The recipes that are compared (Long-CLIP, DeBias) never use them.

StayClose (hidden states by window) and LateSentences (by sentence) distil features of the initial checkpoint.
Not in the papers. A UNet reads the encoder's hidden states, which the contrastive losses do not hold in place. The
first term keeps those of the first window (77 positions) near what an untouched UNet was trained on. After that window
no loss says what states a stretched encoder should have: the second term takes for each late sentence what cutting a
prompt into windows would feed the UNet, distilled into the one long window.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from train_encoder.data.shapes import thing_row

if TYPE_CHECKING:
    from transformers import CLIPModel, PreTrainedTokenizerBase


class PairTerm(nn.Module):
    """One term of the loss. Its setting is `<name>_weight` of `terms.TermWeights`."""

    name: ClassVar[str]
    distils: ClassVar[bool] = False  # made with a frozen copy of the initial checkpoint's text tower
    reads_states: ClassVar[bool] = True  # of all tokens, not of the pooled one alone
    weight: float = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.heads: nn.Module | None = None  # of its own that train with the towers: `heads.loss(batch, vision, text)`

    @staticmethod
    def collate(items: list[dict[str, Any]], texts: Any) -> dict[str, Tensor]:
        """What it needs in a batch beside pictures and captions, one row a pair; `texts` is a `data.batches.Texts`."""
        return {}

    def loss(self, batch: dict[str, Any], out: dict[str, Tensor]) -> Tensor:
        """Its value, a mean over the pairs, so that it does not depend on the number of processes or chunks.

        `out` is what the towers return for `batch`.
        """
        raise NotImplementedError


def collators_of(terms: Sequence[PairTerm]) -> tuple[Any, ...]:
    """What a data worker calls; it needs none of the terms' weights."""
    return tuple(type(term).collate for term in terms)


CELLS, COLOURS, SHAPES, SIZES = 9, 7, 7, 3  # 0 stands for "nothing" in the last three
PARTS = (COLOURS, SHAPES, SIZES)


def _content_loss(logits: Tensor, content: Tensor) -> Tensor:
    """Mean cross entropy of logits [..., 17] against content [..., 3] (colour, shape, size)."""
    parts = logits.float().split(PARTS, dim=-1)
    return sum(
        nn.functional.cross_entropy(part.flatten(0, -2), content[..., index].flatten())
        for index, part in enumerate(parts)
    )


class GroundingHeads(nn.Module):
    """Linear heads on both towers; see the module's docstring."""

    name = "grounding"

    def __init__(self, vision_width: int, text_width: int) -> None:
        super().__init__()
        content = sum(PARTS)
        self.patch = nn.Linear(vision_width, content)
        self.image = nn.Linear(vision_width, CELLS * content)
        self.sentence = nn.Linear(text_width, CELLS + content)

    def loss(self, batch: dict[str, Any], vision: Any, text: Any) -> Tensor:
        """The sum of all three losses.

        `vision` and `text` are the towers' outputs (last_hidden_state, pooler_output). The batch has `cells`, int64
        [b, 9, 3]: what each cell holds; and `mentions`, int64 [b, m, 5]: position of the last token of a sentence or
        tag that names one thing, its cell, colour, shape and size, all -1 in the rows that fill up.
        """
        return self._image_loss(vision, batch["cells"]) + self._text_loss(text, batch["mentions"])

    def _image_loss(self, vision: Any, cells: Tensor) -> Tensor:
        whole = self.image(vision.pooler_output).unflatten(-1, (CELLS, -1))
        return _content_loss(self.patch(vision.last_hidden_state[:, 1:]), cells) + _content_loss(whole, cells)

    def _text_loss(self, text: Any, mentions: Tensor) -> Tensor:
        rows, places = (mentions[..., 0] >= 0).nonzero(as_tuple=True)
        position, cell, *content = mentions[rows, places].T
        states = self.sentence(text.last_hidden_state[rows, position])
        loss = nn.functional.cross_entropy(states[:, :CELLS].float(), cell)
        return loss + _content_loss(states[:, CELLS:], torch.stack(content, dim=1))


class Grounding(PairTerm):
    """The heads' loss. They are modules of the towers, which call them: DistributedDataParallel wraps both as one."""

    name: ClassVar[str] = "grounding"

    def __init__(self, model: CLIPModel, *, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.heads = GroundingHeads(model.config.vision_config.hidden_size, model.config.text_config.hidden_size)

    @staticmethod
    def collate(items: list[dict[str, Any]], texts: Any) -> dict[str, Tensor]:
        """cells and mentions: see `GroundingHeads.loss`."""
        options = {"truncation": True, "max_length": texts.length}
        encoded = texts.tokenizer([item["text"] for item in items], **options)
        found: list[list[tuple[int, ...]]] = []
        for row, item in enumerate(items):
            named = ((encoded.char_to_token(row, end - 1), thing) for end, thing in item["mentions"])
            found.append(
                [(position, thing.cell, *thing_row(thing)) for position, thing in named if position is not None]
            )
        mentions = torch.full((len(items), max(1, *map(len, found)), 5), -1, dtype=torch.long)
        for row, rows in enumerate(found):
            mentions[row, : len(rows)] = torch.tensor(rows, dtype=torch.long).reshape(-1, 5)
        return {"cells": torch.from_numpy(np.stack([item["cells"] for item in items])), "mentions": mentions}

    def loss(self, batch: dict[str, Any], out: dict[str, Tensor]) -> Tensor:
        return out[self.heads.name]


_STOP = re.compile(r"[^\w\s]*[.!?][^\w\s]*</w>")  # `.`, `!"`, `).` where a word ends; pads are `!` without an end
_DIGIT = re.compile(r"\d</w>")


class _Distillation(PairTerm):
    """Holds a frozen copy of the initial checkpoint's text tower, at its own window."""

    distils: ClassVar[bool] = True

    def __init__(self, teacher: nn.Module) -> None:
        super().__init__()
        self.teacher = teacher
        self.window: int = teacher.config.max_position_embeddings
        self.end_id: int = teacher.config.eos_token_id

    def loss(self, batch: dict[str, Any], out: dict[str, Tensor]) -> Tensor:
        return self.distance(batch["input_ids"], out["text_hidden"])


class StayClose(_Distillation):
    """Distillation by window: every token of the initial checkpoint's own window."""

    name: ClassVar[str] = "stay_close"

    def __init__(self, teacher: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> None:
        super().__init__(teacher)

    def distance(
        self, ids: Int[Tensor, "batch length"], hidden: Float[Tensor, "batch positions width"]
    ) -> Float[Tensor, ""]:
        """Return the squared distance of `hidden` (after the final norm) to the teacher's, relative to the latter.

        Read are the tokens from the start token to the end token or, in longer captions, to the last word inside the
        window: under the causal mask their states do not depend on what follows. Mean over the captions of
        sum of squares by sum of squares, so that the value does not depend on the number of processes.
        """
        ids, hidden = ids[:, : self.window], hidden[:, : self.window]
        with torch.no_grad():
            target = self.teacher(input_ids=ids).last_hidden_state.float()
        is_end = ids == self.end_id
        before_end = is_end.cumsum(dim=1) - is_end.long() == 0
        # The last slot of the window only ever held the end token.
        in_window = torch.arange(ids.shape[1], device=ids.device) < self.window - 1
        read = (before_end & (in_window | is_end))[..., None]
        distance = ((hidden.float() - target) ** 2 * read).sum(dim=(1, 2))
        return (distance / (target**2 * read).sum(dim=(1, 2))).mean()


class Span(NamedTuple):
    """The tokens `first` to `after` - 1 of caption `row`."""

    row: int
    first: int
    after: int


class LateSentences(_Distillation):
    """Distillation by sentence: the teacher reads each late sentence alone, in a window of its own.

    A sentence ends with a token of `.`, `!` or `?` (not between two digits), is late when it begins after the last
    word of the teacher's window, and is read up to the length of that window. The first sentence of a caption is never
    late: pads may stand in front of it.
    """

    name: ClassVar[str] = "late_sentences"

    def __init__(self, teacher: nn.Module, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(teacher)
        self.start_id: int = teacher.config.bos_token_id
        words = tokenizer.get_vocab()
        self.stops = frozenset(number for word, number in words.items() if _STOP.fullmatch(word))
        self.digits = frozenset(number for word, number in words.items() if _DIGIT.fullmatch(word))
        if not self.stops:
            raise ValueError(
                "late_sentences_weight is set and the initial checkpoint's tokenizer has no token for a full stop, so "
                "no sentence can be told from the next; set the weight to 0."
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

    def distance(
        self, ids: Int[Tensor, "batch length"], hidden: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, ""]:
        """Return the squared distance of late sentences' `hidden` (after the final norm) to the teacher's.

        Relative to the latter: for each caption the sum of squares over its late sentences by the sum of squares of
        their targets, 0 for a caption without any; mean over all captions, so that the value does not depend on the
        number of processes or chunks.
        """
        spans = self.spans(ids)
        if not spans:
            return hidden[:, :0].sum()  # 0, in the graph as DistributedDataParallel asks
        rows, first, after = torch.tensor(spans, device=ids.device).T
        places = first[:, None] + torch.arange(int((after - first).max()), device=ids.device)
        inside = places < after[:, None]
        places = places.where(inside, first[:, None])
        words = ids[rows[:, None], places].where(inside, self.end_id)
        alone = F.pad(F.pad(words, (1, 0), value=self.start_id), (0, 1), value=self.end_id)
        with torch.no_grad():
            target = self.teacher(input_ids=alone).last_hidden_state[:, 1:-1].float()
        own, read = hidden[rows[:, None], places].float(), inside[..., None]
        distance = _by_caption(((own - target) ** 2 * read).sum(dim=(1, 2)), rows, len(ids))
        size = _by_caption((target**2 * read).sum(dim=(1, 2)), rows, len(ids))
        return (distance / size.where(size > 0, 1)).mean()

    def _is_decimal(self, caption: list[int], place: int) -> bool:
        return caption[place - 1] in self.digits and caption[place + 1] in self.digits


def _by_caption(values: Float[Tensor, " spans"], rows: Int[Tensor, " spans"], count: int) -> Float[Tensor, " batch"]:
    """The sum of the spans' values for each caption."""
    return values.new_zeros(count).index_add(0, rows, values)
