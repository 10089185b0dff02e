"""Dense supervision for the embedded world's base encoder: what is in each cell, and what does each sentence name?

It stands in for web-scale pre-training, where words and places are bound by the sheer number of pairs: contrast alone
binds place, colour and shape very slowly in a small model. Linear heads read four things, each a classification of
(cell,) colour, shape and size: the image tower's patch for its cell, the pooled image for all cells, the text tower's
pooled state for all cells that the caption names, and the state at the end of each sentence for what that sentence
names. The heads are dropped after training; the recipes that are compared (Long-CLIP, DeBias) never use them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

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

    def __init__(self, vision_width: int, text_width: int) -> None:
        super().__init__()
        content = sum(PARTS)
        self.patch = nn.Linear(vision_width, content)
        self.image = nn.Linear(vision_width, CELLS * content)
        self.text = nn.Linear(text_width, CELLS * content)
        self.sentence = nn.Linear(text_width, CELLS + content)

    def loss(self, batch: dict[str, Any], vision: Any, text: Any) -> Tensor:
        """The sum of all four losses.

        `vision` and `text` are the towers' outputs (last_hidden_state, pooler_output). The batch has `cells` and
        `named`, int64 [b, 9, 3]: what each cell holds, and what of it the caption names; and `mentions`, int64 [m, 6]:
        row, position of the last token of a sentence or tag that names one thing, its cell, colour, shape and size.
        """
        return self._image_loss(vision, batch["cells"]) + self._text_loss(text, batch["named"], batch["mentions"])

    def _image_loss(self, vision: Any, cells: Tensor) -> Tensor:
        whole = self.image(vision.pooler_output).unflatten(-1, (CELLS, -1))
        return _content_loss(self.patch(vision.last_hidden_state[:, 1:]), cells) + _content_loss(whole, cells)

    def _text_loss(self, text: Any, named: Tensor, mentions: Tensor) -> Tensor:
        whole = _content_loss(self.text(text.pooler_output).unflatten(-1, (CELLS, -1)), named)
        states = self.sentence(text.last_hidden_state[mentions[:, 0], mentions[:, 1]])
        place = nn.functional.cross_entropy(states[:, :CELLS].float(), mentions[:, 2])
        return whole + place + _content_loss(states[:, CELLS:], mentions[:, 3:])


@torch.no_grad()
def named_accuracy(heads: GroundingHeads, pooled: Tensor, named: Tensor) -> float:
    """Share of named cells whose colour, shape and size are all read right from the pooled text state."""
    parts = heads.text(pooled).unflatten(-1, (CELLS, -1)).float().split(PARTS, dim=-1)
    guesses = torch.stack([part.argmax(-1) for part in parts], dim=-1)
    present = named[..., 0] > 0
    return float((guesses == named).all(dim=-1)[present].float().mean())
