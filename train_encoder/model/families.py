"""The families of models that can be trained, CLIP and SigLIP: their towers, texts and settings; and the stretch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from debias_sd.encoder import stretch_encoder
from train_encoder.data.batches import ClipTexts, SiglipTexts, Texts
from train_encoder.model.towers import ClipTowers, SiglipTowers, check_siglip

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import CLIPModel, PreTrainedModel, PreTrainedTokenizerBase, SiglipModel

    from train_encoder.pair_terms import PairTerm
    from train_encoder.settings import TrainConfig

Model = TypeVar("Model", "CLIPModel", "SiglipModel")


class Towers(Protocol):
    """Both towers in one `nn.Module`, called with a batch; `clip` is transformers' model."""

    clip: PreTrainedModel
    largest_logit_scale: float
    feature_size: int  # of an image's features

    def __call__(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """Features image, text and (with two captions) short, not normalised, [b, d]; logit_scale; what terms read."""
        ...

    def image_modules(self) -> tuple[nn.Module, ...]:
        """All that turns a picture into features."""
        ...

    def image_features(self, pixel_values: Tensor) -> Tensor: ...

    def text_features(self, ids: Tensor) -> Tensor: ...

    def gather_layers(self) -> None:
        """Make ready for an engine that gathers a layer's weights when the layer is called."""
        ...


class Family(NamedTuple):
    """What differs between families. `check` raises ValueError for settings that mean nothing for this one."""

    towers: Callable[[Any, TrainConfig, Sequence[PairTerm]], Towers]
    texts: Callable[[PreTrainedTokenizerBase, TrainConfig], Texts]
    check: Callable[[TrainConfig], None]


def _clip_texts(tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Texts:
    return ClipTexts(tokenizer, tokenizer.model_max_length, config.pad_id)


def _siglip_texts(tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Texts:
    return SiglipTexts(tokenizer, tokenizer.model_max_length)


CLIP = Family(ClipTowers, _clip_texts, lambda config: None)
SIGLIP = Family(SiglipTowers, _siglip_texts, check_siglip)


def family_of(model: PreTrainedModel) -> Family:
    """The family of a model, by its config."""
    return SIGLIP if model.config.model_type == "siglip" else CLIP


def stretch_model(model: Model, tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Model:
    """Return `model`, or its stretched copy where `config` says so, and set the tokenizer's window to it.

    Long-CLIP (arXiv 2403.15378) stretches 77 to 248 positions, keeps the first 20 and trains the others. SigLIP's 64
    become 196 in the same way.
    """
    positions = model.config.text_config.max_position_embeddings
    if config.stretch_factor > 1:
        if positions > 77:
            raise ValueError(
                f"the initial checkpoint has {positions} positions already, a stretch begins with 77 or fewer; "
                "set stretch_factor to 1 or name the model it was stretched from."
            )
        model = stretch_encoder(model, keep=config.keep_positions, factor=config.stretch_factor)
    tokenizer.model_max_length = model.config.text_config.max_position_embeddings
    return model


def make_towers(model: PreTrainedModel, config: TrainConfig, terms: Sequence[PairTerm]) -> Towers:
    """Both towers in training mode, frozen, recomputed and compiled as `config` says.

    All of it before they are wrapped: DistributedDataParallel waits for the gradient of every parameter that wants one.
    """
    towers = family_of(model).towers(model, config, terms).train()
    if config.freeze_image_tower:
        for module in towers.image_modules():
            module.requires_grad_(False)
    if config.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    if config.torch_compile:
        # Layer by layer: one small graph that all layers share, whatever the lengths.
        for layer in (*model.text_model.encoder.layers, *model.vision_model.encoder.layers):
            layer.compile(dynamic=True)
    dropout = max(model.config.text_config.attention_dropout, model.config.vision_config.attention_dropout)
    if dropout and config.contrast_chunks > 1:
        raise ValueError(
            f"the initial checkpoint has attention_dropout {dropout}, but with contrast_chunks every pair is read "
            "twice and must give the same features; set attention_dropout in its config.json to 0."
        )
    return towers
