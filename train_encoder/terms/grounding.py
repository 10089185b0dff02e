"""Dense supervision for the embedded world's base encoder: what is in each cell, and what does each sentence name?

It stands in for web-scale pre-training, where words and places are bound by the sheer number of pairs: contrast alone
binds place, colour and shape very slowly in a small model. Linear heads read three things, each a classification of
(cell,) colour, shape and size: the image tower's patch for its cell, the pooled image for all cells, and the text
tower's state at the end of each sentence for what that sentence names.

The *pooled* text state has no head: what it collects from the sentences is left to the contrastive loss, as in CLIP. A
base whose pooled state is supervised reads long captions without any fine-tuning (`docs/log.md`), which no CLIP does.
The heads are dropped after training. The recipes that are compared (Long-CLIP, DeBias) never use them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from train_encoder.data.shapes import thing_row
from train_encoder.terms.pair_term import PairTerm

if TYPE_CHECKING:
    from transformers import CLIPModel

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
