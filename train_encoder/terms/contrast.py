"""The contrast of a batch's pairs, those of all processes: the term that sees more than one pair at a time.

Method of DeBias-CLIP (arXiv 2602.22419). Features are gathered with gradient, and each process computes the loss of its
own rows against all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

from debias_sd.losses import pair_loss, two_caption_loss
from train_encoder.processes import gather_with_gradient

if TYPE_CHECKING:
    from accelerate import Accelerator

    from train_encoder.settings import TrainConfig

FEATURES = ("image", "text", "short")  # one row a pair
SCALARS = ("logit_scale", "logit_bias")


class Contrast:
    """`two_caption_loss` of long and short captions, `pair_loss` where there is one caption. Its weight is 1."""

    name, weight = "contrast", 1.0

    def __init__(self, accelerator: Accelerator, config: TrainConfig) -> None:
        self.accelerator, self.config = accelerator, config

    def loss(self, features: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of this process's rows against the pairs of all, and its parts by name.

        `features` has image, text and (with two captions) short [b, d], as the towers return them, logit_scale and, of
        SigLIP's towers, logit_bias.
        """
        rows, rank = None, self.accelerator.process_index
        if self.accelerator.num_processes > 1:
            count = len(features["image"])
            rows = slice(rank * count, (rank + 1) * count)
        options = {"label_smoothing": self.config.label_smoothing, "logit_bias": features.get("logit_bias")}
        options |= {"rows": rows}
        if "short" in features:
            loss = two_caption_loss(
                *(features[name] for name in FEATURES),
                features["logit_scale"],
                short_weight=self.config.short_weight,
                rank=self.config.components,
                local_components=self.config.local_components,
                gather=gather_with_gradient,
                **options,
            )
            return loss.total, {"long": loss.long, "short": loss.short}
        image, text = (gather_with_gradient(F.normalize(features[name].float(), dim=-1)) for name in ("image", "text"))
        total = pair_loss(image, text, features["logit_scale"], **options)
        return total, {"contrastive": total}
