"""SigLIP's two towers as they are trained, and the settings that mean nothing for them.

SigLIP (arXiv 2303.15343) and SigLIP 2 of a fixed resolution (arXiv 2502.14786) are both transformers' `SiglipModel`.
No token may be left out as `packing.py` leaves them out of CLIP's: the text tower attends in both directions and
without a mask, so every slot, pads included, decides the state at the last position, which is pooled. Only in the last
layer is that position computed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from train_encoder.model.packing import last_layer_at
from train_encoder.terms.terms import WEIGHTS

if TYPE_CHECKING:
    from transformers import SiglipModel

    from train_encoder.settings import TrainConfig
    from train_encoder.terms.pair_term import PairTerm


class SiglipTowers(nn.Module):
    """Both towers in one module, as `clip.ClipTowers` has CLIP's. `clip` is the `SiglipModel`.

    Features are the pooled states themselves: the projections are the towers' own heads. The temperature is not
    clamped: neither the paper nor big_vision does, and a clamp at 100 (CLIP's, which open_clip's trainer applies here
    too) would change a checkpoint that lies above it. The bias trains with it.
    """

    largest_logit_scale = math.inf

    def __init__(self, clip: SiglipModel, config: TrainConfig, terms: Sequence[PairTerm] = ()) -> None:
        super().__init__()
        self.clip = clip
        self.whole_layers = False  # see `gather_layers`

    @property
    def feature_size(self) -> int:
        """Size of an image's features."""
        return self.clip.config.vision_config.hidden_size

    def image_modules(self) -> tuple[nn.Module, ...]:
        """All that turns a picture into features."""
        return (self.clip.vision_model,)

    def gather_layers(self) -> None:
        """Make ready for an engine that gathers a layer's weights when the layer is called."""
        self.whole_layers = True

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return image, text and (with two captions) short features, not normalised, [b, d]; logit_scale, logit_bias.

        Long and short captions have one length, so the text tower reads them in one pass.
        """
        captions = [batch[name] for name in ("input_ids", "short_ids") if name in batch]
        features = self.text_features(torch.cat(captions)).split(len(captions[0]))
        return {
            "image": batch["image_features"]
            if "image_features" in batch
            else self.image_features(batch["pixel_values"]),
            **dict(zip(("text", "short"), features, strict=False)),
            # New tensors: DDP must see them come out of the forward pass.
            "logit_scale": self.clip.logit_scale.reshape(()) * 1.0,
            "logit_bias": self.clip.logit_bias.reshape(()) * 1.0,
        }

    def image_features(self, pixel_values: Tensor) -> Tensor:
        """What `forward` returns as image, for pictures alone."""
        return self.clip.vision_model(pixel_values=pixel_values).pooler_output

    def text_features(self, ids: Tensor) -> Tensor:
        """What `forward` returns as text, for token ids [b, L] of the whole length alone."""
        model = self.clip.text_model
        if self.whole_layers:
            return model(input_ids=ids).pooler_output
        hidden = model.embeddings(input_ids=ids)
        *layers, last = model.encoder.layers
        for layer in layers:
            hidden = layer(hidden, None)
        return model.head(model.final_layer_norm(last_layer_at(last, hidden, ids.shape[1] - 1)))


def check_siglip(config: TrainConfig) -> None:
    """Raise ValueError with one sentence for a setting that a SigLIP cannot follow."""
    if config.label_smoothing:
        raise ValueError(
            f"label_smoothing is {config.label_smoothing} (recipe {config.recipe}) and the initial checkpoint is a "
            "SigLIP, whose sigmoid loss has no classes to smooth; set label_smoothing to 0."
        )
    if config.pad_id != 0:
        raise ValueError(
            f"pad_id is {config.pad_id} and the initial checkpoint is a SigLIP, which is padded with its "
            "tokenizer's own pad; leave pad_id out."
        )
    for name in (*WEIGHTS, "validation_steps"):
        if getattr(config, name):
            raise ValueError(
                f"{name} is {getattr(config, name)} and the initial checkpoint is a SigLIP, whose states "
                "no Stable Diffusion reads; that setting is for CLIP, set it to 0."
            )
