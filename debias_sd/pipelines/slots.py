"""What fills a text encoder's slot of a pipeline: what the slot asks for, the model and tokenizer that fit it.

The pipeline's denoiser was trained on one text encoder, so whatever fills the slot has its width, its pads (the
denoiser attends to padded states), its vocabulary, and its kind of pooled vector. What is given is not changed: a model
comes back as a structure of its own around the same weights, and only the position table is new.
"""

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, PreTrainedTokenizerBase

from debias_sd.encoder import TextEncoder, stretch_in_place, text_tower, uncompiled
from debias_sd.pipelines.families import Slot, family_of_pipeline
from debias_sd.positions import KEEP
from debias_sd.tokens import spell_out_special_tokens

ORIGIN = "debias_sd_origin"  # a key of the text encoder's own config: it is saved with the pipeline
Model = TypeVar("Model", CLIPTextModel, CLIPTextModelWithProjection)
Filling = tuple[CLIPTextModel | CLIPTextModelWithProjection, PreTrainedTokenizerBase]


@dataclass(frozen=True)
class EncoderRow:
    """One text encoder of a pipeline.

    `origin` is "base" (the pipeline's own), "stretched" (its own, with more positions and no training) or "given".
    `positions` counts the tokens that one call reads, start and end token included.
    """

    slot: str
    kind: str
    positions: int
    width: int
    pad_id: int
    origin: str


@dataclass(frozen=True)
class Place:
    """What a slot asks of a text encoder, read from the one that is in it."""

    slot: Slot
    width: int
    projection: Tensor | None  # [projection width, width] where the slot's pooled vector is projected
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, slot: Slot, components: Mapping[str, object]) -> "Place":
        """Read the place from a pipeline's components; ValueError when its tokenizer and encoder do not fit."""
        model, tokenizer = components[slot.encoder], components[slot.tokenizer]
        projection = model.text_projection.weight.detach() if slot.pooled == "projected" else None
        return cls(slot, model.config.hidden_size, projection, tokenizer, device=model.device, dtype=model.dtype)


def describe_encoders(pipe: object) -> list[EncoderRow]:
    """Return one row for every text encoder of a Stable Diffusion pipeline, in the order in which it reads them.

    Raises ValueError for a pipeline of another family.
    """
    rows = []
    for slot in family_of_pipeline(pipe).slots:
        parts = pipe.components
        model, tokenizer = parts[slot.encoder], parts[slot.tokenizer]
        rows.append(
            EncoderRow(
                slot=slot.encoder,
                kind=type(uncompiled(model)).__name__,
                positions=tokenizer.model_max_length,
                width=model.config.hidden_size,
                pad_id=tokenizer.pad_token_id,
                origin=getattr(model.config, ORIGIN, "base"),
            )
        )
    return rows


def check_pair(slot: Slot, components: Mapping[str, object], *, name: str) -> None:
    """Raise ValueError unless the CLIP encoder and the tokenizer in `slot` of pipeline `name` belong together."""
    check_vocabulary(slot, components, name=name)
    reads = components[slot.tokenizer].model_max_length
    positions = text_tower(components[slot.encoder]).embeddings.position_embedding.num_embeddings
    if reads > 1_000_000:
        raise ValueError(
            f"the {slot.tokenizer} of {name} has no model_max_length, so it has no window; write "
            f'"model_max_length": {positions} into its tokenizer_config.json.'
        )
    if reads != positions:
        raise ValueError(
            f"the {slot.tokenizer} of {name} reads {reads} tokens and its {slot.encoder} {positions}; give both from "
            "one folder, or load with load_debias_pipeline(base, encoder), which swaps both."
        )


def check_vocabulary(slot: Slot, components: Mapping[str, object], *, name: str) -> None:
    """Raise ValueError unless the CLIP encoder in `slot` of pipeline `name` has a vector for each of its tokens."""
    tokens = len(components[slot.tokenizer])
    vectors = text_tower(components[slot.encoder]).embeddings.token_embedding.num_embeddings
    if tokens != vectors:  # without its files, transformers gives a tokenizer of two tokens
        raise ValueError(
            f"the {slot.tokenizer} of {name} has {tokens} tokens and its {slot.encoder} {vectors}; copy the whole "
            "tokenizer folder again, or give both from one folder."
        )


def fill_given(place: Place, encoder: TextEncoder) -> Filling:
    """Return the model and tokenizer of `encoder` as `place` needs them: its class, dtype, device and pads.

    The weights are shared with `encoder` where dtype and device allow it. Raises ValueError when it does not fit.
    """
    encoder.check()
    check_width(place.slot, encoder.width, need=place.width)
    tokenizer = _padded_like(encoder.tokenizer, place)
    model = shared_copy(encoder.model).to(device=place.device, dtype=place.dtype)
    model.config.pad_token_id = tokenizer.pad_token_id
    if place.projection is not None:
        model = _with_projection(model, _projection_for(place, encoder).to(device=place.device, dtype=place.dtype))
    setattr(model.config, ORIGIN, "given")
    return model, tokenizer


def fill_stretched(
    slot: Slot, components: Mapping[str, object], *, positions: int, in_place: bool, name: str
) -> Filling:
    """Return the slot's own encoder and tokenizer with `positions` positions, not lengthened when they have them.

    `in_place` changes the encoder itself, else it is a structure of its own, and not compiled. Raises ValueError when
    they do not fit or cannot have that many positions.
    """
    check_pair(slot, components, name=name)
    model, tokenizer = uncompiled(components[slot.encoder]), components[slot.tokenizer]
    own = tokenizer.model_max_length
    tokenizer = copy.deepcopy(tokenizer)
    spell_out_special_tokens(tokenizer)
    if not in_place:
        model = shared_copy(model)
    if own == positions:
        return model, tokenizer
    factor, rest = divmod(positions - KEEP, own - KEEP)
    if rest or factor < 1:
        raise ValueError(
            f"the {slot.encoder} of {name} has {own} positions and cannot be stretched to the {positions} of the other "
            f"encoder, only to {KEEP} + {own - KEEP} times a whole number; give one with {positions} positions for it."
        )
    stretch_in_place(model, factor=factor)
    tokenizer.model_max_length = positions
    _name_special_tokens(model, tokenizer)
    setattr(model.config, ORIGIN, "stretched")
    return model, tokenizer


def shared_copy(model: Model) -> Model:
    """Return a model of its own structure and config around the weights of `model`.

    A new position table, adapters, learnt tokens or another dtype of one are not seen by the other.
    """
    weights = {id(weight): nn.Parameter(weight.data, weight.requires_grad) for weight in model.parameters()}
    return copy.deepcopy(model, weights | {id(buffer): buffer for buffer in model.buffers()})


def _name_special_tokens(
    model: CLIPTextModel | CLIPTextModelWithProjection, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Give old configs (end token 2: pooling at the largest id, a learnt token's if there is one) their real ids."""
    tower = text_tower(model)
    for config in (tower.config, model.config):
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        config.pad_token_id = tokenizer.pad_token_id
    tower.eos_token_id = tokenizer.eos_token_id


def check_width(slot: Slot, width: int, *, need: int) -> None:
    """Raise ValueError when an encoder `width` wide cannot fill `slot`, whose own is `need` wide."""
    if width != need:
        raise ValueError(
            f"the encoder is {width} wide and {slot.encoder} of this base is {need} wide, which its denoiser was made "
            "for; give an encoder made for this base (768, CLIP ViT-L/14: SD 1.x, FLUX, the first of SDXL and SD 3; "
            "1024, OpenCLIP ViT-H/14: SD 2.x; 1280, OpenCLIP ViT-bigG/14: the second of SDXL and SD 3)."
        )


def _padded_like(tokenizer: PreTrainedTokenizerBase, place: Place) -> PreTrainedTokenizerBase:
    """Return a copy of `tokenizer` with the pad token of the slot's own, whose every token must have the same id.

    It spells out special tokens that a user types.
    """
    own, vocabulary = place.tokenizer.get_vocab(), tokenizer.get_vocab()
    if not own.items() <= vocabulary.items():
        token = min(own.items() - vocabulary.items(), key=lambda item: item[1])[0]
        if token in place.tokenizer.added_tokens_encoder and token not in vocabulary:
            raise ValueError(
                f"{place.slot.tokenizer} of this base has the added token {token!r}, which the encoder lacks; if it "
                "was learnt, swap the text encoder first and call load_textual_inversion() on the result, else give an "
                "encoder with the vocabulary of this base."
            )
        raise ValueError(
            f"the encoder's vocabulary is another one: {token!r} has id {own[token]} in {place.slot.tokenizer} of this "
            f"base and {vocabulary.get(token, 'none')} in the encoder's; give an encoder with the vocabulary of this "
            "base."
        )
    if _merges(place.tokenizer) != _merges(tokenizer):
        raise ValueError(
            f"the encoder's tokenizer has the words of {place.slot.tokenizer} of this base and merges letters to them "
            "in another order, so it cuts texts into other tokens; copy the tokenizer files of its model again."
        )
    padded = copy.deepcopy(tokenizer)
    padded.pad_token = place.tokenizer.pad_token
    spell_out_special_tokens(padded)
    return padded


def _merges(tokenizer: PreTrainedTokenizerBase) -> list[list[str]]:
    """Return the pairs that a byte-pair tokenizer joins, in its order: the vocabulary alone does not say how to cut."""
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]


def _projection_for(place: Place, encoder: TextEncoder) -> Tensor:
    """Return the projection that goes with `encoder` in a slot whose pooled vector is projected.

    Stable Diffusion 3 was trained on the first encoder's pooled vector as it is: its own projection is the identity
    there, and stays it.
    """
    own = place.projection
    if own.shape[0] == own.shape[1] and torch.equal(own, torch.eye(len(own), dtype=own.dtype, device=own.device)):
        return own
    if encoder.projection is None:
        raise ValueError(
            f"{place.slot.encoder} of this base needs the pooled vector projected and the encoder's folder has no "
            "text_projection.weight; give the folder of a CLIPModel or a CLIPTextModelWithProjection."
        )
    if encoder.projection.shape[0] != own.shape[0]:
        raise ValueError(
            f"the encoder projects to {encoder.projection.shape[0]} numbers and {place.slot.encoder} of this base to "
            f"{own.shape[0]}; give an encoder made for this base."
        )
    return encoder.projection


def _with_projection(model: CLIPTextModel, projection: Tensor) -> CLIPTextModelWithProjection:
    config = copy.deepcopy(model.config)
    config.projection_dim = len(projection)
    with torch.device("meta"):  # its own weights are never used
        whole = CLIPTextModelWithProjection(config)
    whole.text_model = model
    whole.text_projection.weight = nn.Parameter(projection)
    return whole.eval()
