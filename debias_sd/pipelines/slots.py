"""What fills a text encoder's slot of a pipeline: what the slot asks for, the model and tokenizer that fit it.

The pipeline's denoiser was trained on one text encoder, so whatever fills the slot has its width, its pads (the
denoiser attends to padded states), its vocabulary, and its kind of pooled vector. What is given is not changed: a model
comes back as a structure of its own around the same weights, and only the position table is new.

Stock pipelines ask two things of both that transformers' own classes lack, so each gets a subclass under the name of
its class. Nothing is kept between calls, and a saved pipeline is a stock one.

* `clip_skip` of Stable Diffusion 1.x and 2.x: diffusers (0.42) reads `text_encoder.text_model.final_layer_norm`. Since
  transformers 5.6 a text model holds that layer directly, and a child of that name would rename its weights; so the
  class gets a property. diffusers' LoRA loader alone must not see it: it takes a text encoder with a `text_model` for
  one of the old layout, and finds no layer there.
* Threads: a tokenizer sets length and padding on itself and then reads the text, so that of two pipelines' calls at
  once one may read by the other's settings. Here one is read after the other.
"""

import copy
import sys
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer, PreTrainedTokenizerBase

from debias_sd.encoder import TextEncoder, stretch_in_place, text_tower, uncompiled
from debias_sd.pipelines.families import Slot, family_of_pipeline
from debias_sd.pipelines.fit import check_layers, check_pair, check_plain, check_width, check_words, why_not_plain
from debias_sd.positions import KEEP
from debias_sd.tokens import copy_tokenizer, spell_out_special_tokens

ORIGIN = "debias_sd_origin"  # a key of the text encoder's own config: it is saved with the pipeline
Model = TypeVar("Model", CLIPTextModel, CLIPTextModelWithProjection)
Filling = tuple[CLIPTextModel | CLIPTextModelWithProjection, PreTrainedTokenizerBase]
_LOADERS = "diffusers.loaders."
_READING = threading.Lock()


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
    layers: int
    projection: Tensor | None  # [projection width, width] where the slot's pooled vector is projected
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, slot: Slot, components: Mapping[str, object]) -> "Place":
        """Read the place from a pipeline's components; ValueError when its tokenizer and encoder do not fit."""
        model, tokenizer = components[slot.encoder], components[slot.tokenizer]
        projection = model.text_projection.weight.detach() if slot.pooled == "projected" else None
        config = model.config
        return cls(
            slot, config.hidden_size, config.num_hidden_layers, projection, tokenizer,
            device=model.device, dtype=model.dtype,
        )  # fmt: skip


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


def fill_given(place: Place, encoder: TextEncoder) -> Filling:
    """Return the model and tokenizer of `encoder` as `place` needs them: its class, dtype, device and pads.

    The weights are shared with `encoder` where dtype and device allow it. Raises ValueError when it does not fit.
    """
    encoder.check()
    check_plain(encoder.model, name="the encoder")
    check_width(place.slot, encoder.width, need=place.width)
    check_layers(place.slot, encoder.layers, need=place.layers)
    check_words(place.slot, encoder.tokenizer, own=place.tokenizer)
    tokenizer = copy_tokenizer(encoder.tokenizer)
    tokenizer.pad_token = place.tokenizer.pad_token
    spell_out_special_tokens(tokenizer)
    model = shared_copy(encoder.model)
    if place.layers < encoder.layers:  # the norm after the last layer stays: it is in front of what the slot reads
        model.encoder.layers = model.encoder.layers[: place.layers]
        model.config.num_hidden_layers = place.layers
    model = model.to(device=place.device, dtype=place.dtype)
    model.config.pad_token_id = tokenizer.pad_token_id
    if place.projection is not None:
        model = _with_projection(model, _projection_for(place, encoder).to(device=place.device, dtype=place.dtype))
    setattr(model.config, ORIGIN, "given")
    return _ready(model, tokenizer)


def fill_stretched(
    slot: Slot, components: Mapping[str, object], *, positions: int, in_place: bool, name: str
) -> Filling:
    """Return the slot's own encoder and tokenizer with `positions` positions, not lengthened when they have them.

    `in_place` changes the encoder itself, else it is a structure of its own, and not compiled. Raises ValueError when
    they do not fit or cannot have that many positions.
    """
    check_pair(slot, components, name=name)
    model, tokenizer = uncompiled(components[slot.encoder]), components[slot.tokenizer]
    check_plain(model, name=f"the {slot.encoder} of {name}")
    own = tokenizer.model_max_length
    tokenizer = copy_tokenizer(tokenizer)
    spell_out_special_tokens(tokenizer)
    if not in_place:
        model = shared_copy(model)
    if own == positions:
        return _ready(model, tokenizer)
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
    return _ready(model, tokenizer)


def own_parts(slot: Slot, components: Mapping[str, object], *, shared: Collection[str]) -> dict[str, object]:
    """Return the encoder and tokenizer in `slot` as they are, ready for stock calls; by name.

    Those in `shared` have other owners: what comes back is a structure of its own, or, where it cannot be, themselves.
    """
    model, tokenizer = components[slot.encoder], components[slot.tokenizer]
    if slot.tokenizer in shared:
        tokenizer = copy_tokenizer(tokenizer)
    if slot.encoder in shared and (type(model) is not CLIPTextModel or why_not_plain(model)):
        allow_threads(tokenizer)
        return {slot.encoder: model, slot.tokenizer: tokenizer}
    parts = _ready(shared_copy(model) if slot.encoder in shared else model, tokenizer)
    return dict(zip((slot.encoder, slot.tokenizer), parts, strict=True))


def _ready(model: Model, tokenizer: PreTrainedTokenizerBase) -> Filling:
    """Return both, which no other pipeline has, as stock pipelines can use them."""
    allow_clip_skip(model)
    allow_threads(tokenizer)
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


def _text_model(self: CLIPTextModel) -> SimpleNamespace:
    """The parts that a text model of older transformers held there; AttributeError for diffusers' LoRA loader."""
    if sys._getframe(1).f_globals.get("__name__", "").startswith(_LOADERS):
        raise AttributeError("text_model")
    names = ("embeddings", "encoder", "final_layer_norm", "config", "dtype", "device")
    return SimpleNamespace(**{name: getattr(self, name) for name in names})


def _encode_alone(self: CLIPTokenizer, *given: Any, **named: Any) -> Any:
    with _READING:
        return CLIPTokenizer._encode_plus(self, *given, **named)


def _stand_in(kind: type, members: dict[str, object]) -> type:
    """Return a subclass of `kind` under its name, for diffusers and transformers write class names into their files."""
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__")}
    # Pickle looks a class up by its name, and would find `kind`.
    copied = {"__reduce_ex__": lambda self, _: (_blank, (kind,), self.__getstate__())}
    return type(kind.__name__, (kind,), names | copied | members)


_STAND_INS = {
    CLIPTextModel: _stand_in(CLIPTextModel, {"text_model": property(_text_model)}),
    CLIPTokenizer: _stand_in(CLIPTokenizer, {"_encode_plus": _encode_alone}),
}


def _blank(kind: type) -> object:
    return _STAND_INS[kind].__new__(_STAND_INS[kind])


def allow_clip_skip(model: CLIPTextModel) -> None:
    """Let diffusers' `clip_skip` find the last norm of `model`, which no other pipeline has, where it looks for it.

    A class other than transformers' own stays as it is, and one that has a `text_model` needs nothing.
    """
    if type(model) is CLIPTextModel and not hasattr(model, "text_model"):
        model.__class__ = _STAND_INS[CLIPTextModel]


def allow_threads(tokenizer: CLIPTokenizer) -> None:
    """Let several threads read by `tokenizer`, which no other pipeline has; other classes than CLIP's own stay."""
    if type(tokenizer) is CLIPTokenizer:
        tokenizer.__class__ = _STAND_INS[CLIPTokenizer]
