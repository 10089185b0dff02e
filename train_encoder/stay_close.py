"""A term that keeps the hidden states of the first 77 positions close to those of the model the run starts from.

Not in the papers. A UNet reads the encoder's hidden states, which the contrastive losses do not hold in place; this
measures how far they went from what an untouched UNet was trained on.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


def freeze_copy(text_model: nn.Module) -> nn.Module:
    """A copy of the start's text tower that never trains. Make it before the model is stretched."""
    return copy.deepcopy(text_model).eval().requires_grad_(False)


class StayClose:
    """The start's text tower, frozen (`freeze_copy`), at its own window (77 positions)."""

    def __init__(self, start: nn.Module) -> None:
        self.start = start
        self.window: int = start.config.max_position_embeddings
        self.end_id: int = start.config.eos_token_id

    def loss(self, ids: Int[Tensor, "batch length"], hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, ""]:
        """Return the squared distance of `hidden` (after the final norm) to the start's, relative to the latter.

        Read are the tokens from the start token to the end token or, in longer captions, to the last word inside the
        window: under the causal mask their states do not depend on what follows. Mean over the captions of
        sum of squares by sum of squares, so that the value does not depend on the number of processes.
        """
        ids, hidden = ids[:, : self.window], hidden[:, : self.window]
        with torch.no_grad():
            target = self.start(input_ids=ids).last_hidden_state.float()
        is_end = ids == self.end_id
        before_end = is_end.cumsum(dim=1) - is_end.long() == 0
        # The last slot of the window only ever held the end token.
        in_window = torch.arange(ids.shape[1], device=ids.device) < self.window - 1
        read = (before_end & (in_window | is_end))[..., None]
        distance = ((hidden.float() - target) ** 2 * read).sum(dim=(1, 2))
        return (distance / (target**2 * read).sum(dim=(1, 2))).mean()
