"""The two towers of CLIP and SigLIP as they are trained, and the ways in which a text tower reads a batch.

SigLIP (arXiv 2303.15343) and SigLIP 2 of a fixed resolution (arXiv 2502.14786) are both transformers' `SiglipModel`.
No token may be left out as `packing.py` leaves them out of CLIP's: the text tower attends in both directions and
without a mask, so every slot, pads included, decides the state at the last position, which is pooled. Only in the last
layer is that position computed alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from train_encoder.model.packing import encode_packed, last_layer_at, pooled_image, use_packed_attention
from train_encoder.terms import WEIGHTS

if TYPE_CHECKING:
    from transformers import CLIPModel, CLIPTextModel, SiglipModel

    from train_encoder.pair_terms import PairTerm
    from train_encoder.settings import TrainConfig

LARGEST_LOGIT_SCALE = math.log(100)  # CLIP's own clamp (arXiv 2103.00020)
GROUP = 32  # captions that the text tower reads at once


class States(NamedTuple):
    """What a tower makes of a batch: pooler_output [b, w]; last_hidden_state [b, L, w], None where nothing reads it."""

    pooler_output: Tensor
    last_hidden_state: Tensor | None


class ClipTowers(nn.Module):
    """Both towers and the heads of the terms that have some: one module, so that one DistributedDataParallel wraps all.

    Both ways to read a batch give the same features and gradients. `packed` computes nothing that nothing reads
    (`packing.py`); `grouped` reads captions of like length together, each kind in a pass of its own: the
    shipped encoders are made with it, to the bit.
    """

    largest_logit_scale = LARGEST_LOGIT_SCALE

    def __init__(self, clip: CLIPModel, config: TrainConfig, terms: Sequence[PairTerm] = ()) -> None:
        super().__init__()
        self.clip = clip
        self.heads: nn.Module | None = next((term.heads for term in terms if term.heads is not None), None)
        self.packed, self.pad_id = config.text_pass == "packed", config.pad_id
        self.reads_states = any(term.reads_states for term in terms)
        self.whole_layers = False  # see `gather_layers`
        if self.packed:
            use_packed_attention(clip.text_model)

    @property
    def feature_size(self) -> int:
        """Size of an image's features."""
        return self.clip.config.projection_dim

    def image_modules(self) -> tuple[nn.Module, ...]:
        """All that turns a picture into features."""
        return self.clip.vision_model, self.clip.visual_projection

    def gather_layers(self) -> None:
        """Make ready for an engine that gathers a layer's weights when the layer is called, and shards no scalar."""
        self.whole_layers = True
        self.clip.logit_scale = nn.Parameter(self.clip.logit_scale.detach().reshape(1))

    def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Return image, text and (with two captions) short features, not normalised, [b, d]; logit_scale;
        text_hidden [b, L, w] after the final norm, where a term reads it; with heads their loss, by their name."""
        vision = None if "image_features" in batch else self._read_pictures(batch["pixel_values"])
        text, short = self._read_captions(batch["input_ids"], batch.get("short_ids"))
        out = {
            "image": batch["image_features"] if vision is None else self.clip.visual_projection(vision.pooler_output),
            "text": self.clip.text_projection(text.pooler_output),
            # A new tensor: DDP must see it come out of the forward pass. A vector of one where weights are sharded.
            "logit_scale": self.clip.logit_scale.reshape(()) * 1.0,
        }
        if text.last_hidden_state is not None:
            out["text_hidden"] = text.last_hidden_state
        if short is not None:
            out["short"] = self.clip.text_projection(short)
        if self.heads is not None:
            out[self.heads.name] = self.heads.loss(batch, vision, text)
        return out

    def image_features(self, pixel_values: Tensor) -> Tensor:
        """What `forward` returns as image, for pictures alone."""
        return self.clip.visual_projection(self._read_pictures(pixel_values).pooler_output)

    def text_features(self, ids: Tensor) -> Tensor:
        """What `forward` returns as text, for token ids [b, L] alone."""
        return self.clip.text_projection(self._read_captions(ids, None)[0].pooler_output)

    def _read_pictures(self, pixel_values: Tensor) -> States:
        if self.packed and not self.whole_layers and self.heads is None:
            return States(pooled_image(self.clip.vision_model, pixel_values), None)
        vision = self.clip.vision_model(pixel_values=pixel_values)
        return States(vision.pooler_output, vision.last_hidden_state)

    def _read_captions(self, ids: Tensor, short_ids: Tensor | None) -> tuple[States, Tensor | None]:
        """The states of the long captions, and the pooled ones of the short captions."""
        model = self.clip.text_model
        if not self.packed:
            text = encode_by_length(model, ids)  # first: the order decides how gradients round
            return text, None if short_ids is None else encode_by_length(model, short_ids).pooler_output
        captions = [ids] if short_ids is None else [ids, short_ids]
        length = max(part.shape[1] for part in captions)
        both = torch.cat([F.pad(part, (0, length - part.shape[1]), value=self.pad_id) for part in captions])
        options = {"states": self.reads_states, "whole_layers": self.whole_layers}
        pooled, hidden = encode_packed(model, both, pad_id=self.pad_id, **options)
        text = States(pooled[: len(ids)], None if hidden is None else hidden[: len(ids), : ids.shape[1]])
        return text, None if short_ids is None else pooled[len(ids) :]


def encode_by_length(text_model: CLIPTextModel, ids: Tensor) -> States:
    """Return the states of `ids` [b, L], hidden ones after the end tokens are zero or not to be used.

    The captions are read in groups of like length, each cut at its longest: under the causal mask nothing changes for
    the tokens up to the end, and a batch takes half the time where front pads make lengths differ widely.
    """
    ends = (ids == text_model.config.eos_token_id).int().argmax(dim=1)
    order = ends.argsort(stable=True)
    pooled, hidden = [], []
    for rows in order.split(GROUP):
        part = text_model(input_ids=ids[rows, : int(ends[rows].max()) + 1])
        pooled.append(part.pooler_output)
        hidden.append(F.pad(part.last_hidden_state, (0, 0, 0, ids.shape[1] - part.last_hidden_state.shape[1])))
    back = order.argsort()
    return States(torch.cat(pooled)[back], torch.cat(hidden)[back])


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
