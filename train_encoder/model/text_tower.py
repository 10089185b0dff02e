"""A text encoder that is lengthened: alone, as its pipeline reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from debias_sd.prompts.own_encoders import read_slot

if TYPE_CHECKING:
    from debias_sd.encoder import TextEncoder
    from debias_sd.pipelines.families import Slot

GROUP = 8  # texts of like length that are read at once
TAIL = 4  # pads after the longest of them


class TextTower(nn.Module):
    """Reads a batch of `data.texts.TextCollator`. `clip` is the stretched text model, in training mode.

    Texts of like length are read together, filled with pads to the longest and a few more: the denoiser reads these
    pads too. One group a batch is filled to the last position. Nothing is computed that is not held to something.
    """

    largest_logit_scale = None

    def __init__(self, encoder: TextEncoder, slot: Slot) -> None:
        super().__init__()
        self.clip, self.slot, self._encoder = encoder.model.train(), slot, encoder
        if slot.layer == "penultimate" and slot.pooled is None:
            # DistributedDataParallel waits for the gradient of every parameter that wants one.
            for part in (self.clip.encoder.layers[-1], self.clip.final_layer_norm):
                part.requires_grad_(False)

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return what the slot has of: states [b, L, w], 0 from `reach` (int64 [b]) on; pooled [b, p]."""
        ids, lengths = batch["input_ids"], batch["lengths"]
        order = lengths.argsort(stable=True)
        groups = order.split(GROUP)
        full = int(lengths.sum()) % len(groups)  # drawn from the batch itself: a resumed run draws the same
        out: dict[str, list[Tensor]] = {"states": [], "reach": [], "pooled": []}
        for number, rows in enumerate(groups):
            reach = ids.shape[1] if number == full else min(ids.shape[1], int(lengths[rows].max()) + TAIL)
            read = read_slot(self._encoder, self.slot, ids[rows, :reach])
            out["reach"].append(torch.full_like(rows, reach))
            if read.states is not None:
                out["states"].append(F.pad(read.states, (0, 0, 0, ids.shape[1] - reach)))
            if read.pooled is not None:
                out["pooled"].append(read.pooled)
        back = order.argsort()
        return {name: torch.cat(parts)[back] for name, parts in out.items() if parts}
