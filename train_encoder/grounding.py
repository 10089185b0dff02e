"""Dense supervision for the embedded world's base encoder: what is in each cell, and what does each sentence name?

It stands in for web-scale pre-training, where words and places are bound by the sheer number of pairs: contrast alone
binds place, colour and shape very slowly in a small model. Linear heads read three things, each a classification of
(cell,) colour, shape and size: the image tower's patch for its cell, the pooled image for all cells, and the text
tower's state at the end of each sentence for what that sentence names.

The *pooled* text state has no head: what it collects from the sentences is left to the contrastive loss, as in CLIP. A
base whose pooled state is supervised reads long captions without any fine-tuning (`docs/log.md`), which no CLIP does.
The heads are dropped after training; the recipes that are compared (Long-CLIP, DeBias) never use them.
"""

from __future__ import annotations

from typing import Any

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
        self.sentence = nn.Linear(text_width, CELLS + content)

    def loss(self, batch: dict[str, Any], vision: Any, text: Any) -> Tensor:
        """The sum of all three losses.

        `vision` and `text` are the towers' outputs (last_hidden_state, pooler_output). The batch has `cells`, int64
        [b, 9, 3]: what each cell holds; and `mentions`, int64 [m, 6]: row, position of the last token of a sentence or
        tag that names one thing, its cell, colour, shape and size.
        """
        return self._image_loss(vision, batch["cells"]) + self._text_loss(text, batch["mentions"])

    def _image_loss(self, vision: Any, cells: Tensor) -> Tensor:
        whole = self.image(vision.pooler_output).unflatten(-1, (CELLS, -1))
        return _content_loss(self.patch(vision.last_hidden_state[:, 1:]), cells) + _content_loss(whole, cells)

    def _text_loss(self, text: Any, mentions: Tensor) -> Tensor:
        states = self.sentence(text.last_hidden_state[mentions[:, 0], mentions[:, 1]])
        place = nn.functional.cross_entropy(states[:, :CELLS].float(), mentions[:, 2])
        return place + _content_loss(states[:, CELLS:], mentions[:, 3:])
