"""The families of models that can be trained, CLIP and SigLIP: which towers, texts and settings belong to a start."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from train_encoder.model import Towers
from train_encoder.siglip import SiglipTowers, check_siglip
from train_encoder.texts import ClipTexts, SiglipTexts, Texts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from train_encoder.settings import TrainConfig

AnyTowers = Towers | SiglipTowers


class Kind(NamedTuple):
    """What differs between families. `check` raises ValueError for settings that mean nothing for this one."""

    towers: Callable[[Any, TrainConfig], AnyTowers]
    texts: Callable[[PreTrainedTokenizerBase, TrainConfig], Texts]
    check: Callable[[TrainConfig], None]


def _clip_texts(tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Texts:
    return ClipTexts(tokenizer, tokenizer.model_max_length, config.pad_id)


def _siglip_texts(tokenizer: PreTrainedTokenizerBase, config: TrainConfig) -> Texts:
    return SiglipTexts(tokenizer, tokenizer.model_max_length)


def _all_settings(config: TrainConfig) -> None:
    """CLIP, for which the settings were made."""


CLIP = Kind(Towers, _clip_texts, _all_settings)
SIGLIP = Kind(SiglipTowers, _siglip_texts, check_siglip)


def kind_of(model: PreTrainedModel) -> Kind:
    """The family of a model, by its config."""
    return SIGLIP if model.config.model_type == "siglip" else CLIP
