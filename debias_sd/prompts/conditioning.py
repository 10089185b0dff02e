"""Prompts of any length as what a stock pipeline takes in their place: `pipe(**encode_prompt(pipe, prompt))`."""

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Required, TypedDict, cast

import torch
from diffusers import DiffusionPipeline
from diffusers.loaders import TextualInversionLoaderMixin
from diffusers.utils.torch_utils import get_module_execution_device
from torch import Tensor, nn

from debias_sd.pipelines.families import Family, Slot, family_of_pipeline
from debias_sd.prompts.batch import Prompt, PromptBatch, Reader, Rows, Texts, texts_of
from debias_sd.prompts.cuts import LONGALIGN
from debias_sd.prompts.lora_scale import lora_at
from debias_sd.prompts.pitfalls import warn_of_half_learnt, warn_of_tags
from debias_sd.prompts.states import (
    POOLED,
    Encoded,
    Read,
    encode_sentences,
    encode_windows,
    row_length,
    weigh,
    whole_row,
)
from debias_sd.prompts.whole import reader_of_whole

SAME = "same"


class PromptEmbeddings(TypedDict, total=False):
    """What a pipeline's call takes in place of its prompts: those of these names that its family has."""

    prompt_embeds: Required[Tensor]  # (batch, tokens, width)
    pooled_prompt_embeds: Tensor  # (batch, projection)
    negative_prompt_embeds: Tensor
    negative_pooled_prompt_embeds: Tensor
    cross_attention_kwargs: dict[str, float]  # only with lora_scale, as the next one
    joint_attention_kwargs: dict[str, float]


@torch.no_grad()
def encode_prompt(
    pipe: Any,  # diffusers' DiffusionPipeline, which type checkers see as a placeholder
    prompt: Prompt,
    negative_prompt: Prompt | None = None,
    *,
    prompt_2: Prompt | None = None,
    prompt_3: Prompt | None = None,
    negative_prompt_2: Prompt | None = None,
    negative_prompt_3: Prompt | None = None,
    window: int | str | None = None,
    weighting: str | None = None,
    pooled: str = "first",
    clip_skip: int | None = None,
    negative_clip_skip: int | str | None = SAME,
    max_sequence_length: int | None = None,
    lora_scale: float | None = None,
    num_images_per_prompt: int = 1,
) -> PromptEmbeddings:
    """Return `prompt_embeds` and what else a pipeline of its family takes in place of prompts of any length.

    Each prompt is cut into windows, each CLIP encoder reads every window by itself, and the states are joined:
    (batch, windows * window, width) in the encoder's dtype, prompts and negative prompts of one length. T5 reads the
    whole text at once. One window without markup equals `pipe.encode_prompt` bit for bit. Families: `families`.

    Args:
        prompt: one text or a list; `negative_prompt` is one for all or one for each. Without one it is empty, zeros
            where SDXL's `force_zeros_for_empty_prompt` says so, and left out for FLUX. `prompt_2` and so on are for
            the second and third encoder; without, the same text.
        window: tokens of a window: None, all that the encoders read; "auto", 77 if all texts fit, else all; or a
            number, such as 77, the chunking of other tools. "sentence" reads what comes after the first window
            sentence by sentence, "sentence-always" all sentences of any text, "longalign" as LongAlign does: see
            `prompts/states.py`.
        weighting: "a1111" reads `(word:1.3)` and BREAK, see `markup`. Pooled vectors are never weighted.
        pooled: the pooled vector is that of the "first" window, or the "mean" of those of a text's windows.
        clip_skip: last layers to leave out, as in diffusers ("clip skip 2" of AUTOMATIC1111 is 1 here), but of the
            negative prompt too; `negative_clip_skip=None` is diffusers' rule, which reads the negative prompt from all
            layers. None is what the pipeline's own call does: all layers, of I2VGenXL all but the last.
        max_sequence_length: tokens that T5's texts are padded to, by default the pipeline's own; longer texts are read
            to their end.
        lora_scale: strength of LoRA in the text encoders, for this call only. The result then holds it for the
            denoiser too, under the name that its pipeline takes (`cross_attention_kwargs={"scale": ...}`).
        num_images_per_prompt: repeats of each row; leave it out where the pipeline is called.

    Raises ValueError with one sentence for what this pipeline cannot take.
    """
    family = family_of_pipeline(pipe)
    clip_skip = _call_options(type(pipe)).get("clip_skip") if clip_skip is None else clip_skip
    negatives = (negative_prompt, negative_prompt_2, negative_prompt_3)
    sides = _sides(pipe, family, (prompt, prompt_2, prompt_3), negatives)
    skips = _skips(pipe, family, clip_skip, clip_skip if negative_clip_skip == SAME else negative_clip_skip)
    length = _whole_length(pipe, max_sequence_length)
    if pooled not in POOLED or type(num_images_per_prompt) is not int or num_images_per_prompt < 1:
        given = f"pooled is {pooled!r} and num_images_per_prompt {num_images_per_prompt!r}"
        raise ValueError(f"{given}; they must be 'first' or 'mean', and a whole number from 1.")
    readers = [_reader(pipe, slot) for slot in family.slots]
    convert = pipe.maybe_convert_prompt if isinstance(pipe, TextualInversionLoaderMixin) else None
    batch = PromptBatch(readers, sides, weighting=weighting, convert=convert)
    warn_of_tags(batch.tags, sides, weighting=weighting)
    warn_of_half_learnt(family.clip_slots, readers, sides)
    rows = batch.rows(window=window, shortest=length)
    with lora_at([getattr(pipe, slot.encoder) for slot in family.slots], lora_scale):
        encoded = [_encode(pipe, slot, one, skips, pooled) for slot, one in zip(family.slots, rows, strict=True)]
    result = {}
    for side, prefix in zip(range(len(sides)), ("", "negative_"), strict=False):
        result |= _named(pipe, family, [one[side] for one in encoded], prefix=prefix, length=length)
    if len(sides) == 1 and _zeros_for_empty(pipe):
        result |= {f"negative_{name}": torch.zeros_like(tensor) for name, tensor in result.items()}
    result = {name: tensor.repeat_interleave(num_images_per_prompt, dim=0) for name, tensor in result.items()}
    scale = {} if lora_scale is None else _scale_for_denoiser(pipe, lora_scale)
    return cast(PromptEmbeddings, result | scale)


@functools.cache
def _call_options(kind: type[DiffusionPipeline]) -> dict[str, object]:
    """Return the names that a pipeline's call takes, with their defaults."""
    return {name: one.default for name, one in inspect.signature(kind.__call__).parameters.items()}


def _scale_for_denoiser(pipe: DiffusionPipeline, scale: float) -> dict[str, dict[str, float]]:
    """Return the scale as the pipeline's call takes it: states of one scale are not drawn from at another."""
    names = _call_options(type(pipe)).keys() & {"cross_attention_kwargs", "joint_attention_kwargs"}
    return {name: {"scale": scale} for name in names}


def _zeros_for_empty(pipe: DiffusionPipeline) -> bool:
    return bool(pipe.config.get("force_zeros_for_empty_prompt", False))


def _sides(
    pipe: DiffusionPipeline, family: Family, prompts: Sequence[Prompt | None], negatives: Sequence[Prompt | None]
) -> list[Texts]:
    """Return the texts of the prompts, and those of the negative prompts where they are to be encoded."""
    kind, names = type(pipe).__name__, _call_options(type(pipe))
    has_pooled = any(slot.pooled for slot in family.slots if slot.layer or slot.kind == "clip")
    if "prompt_embeds" not in names or ("pooled_prompt_embeds" in names) != has_pooled:
        raise ValueError(f"{kind} does not take the embeddings of {family.name}; give it the prompt itself.")
    texts = texts_of(prompts, readers=len(family.slots))
    if negatives[0] is None and any(negatives):
        raise ValueError("a negative prompt for another text encoder comes without negative_prompt; give both.")
    takes = "negative_prompt_embeds" in names
    if not takes and negatives[0] is not None:
        raise ValueError(f"{kind} takes no negative prompt; leave it out.")
    # FLUX has guidance by negative prompts only where one is given.
    if negatives[0] is None and (not takes or "true_cfg_scale" in names or _zeros_for_empty(pipe)):
        return [texts]
    given = [negatives[0] or "", *negatives[1:]]
    return [texts, texts_of(given, readers=len(family.slots), size=len(texts[0]), side="negative_prompt")]


def _skips(pipe: DiffusionPipeline, family: Family, *skips: int | None) -> tuple[int | None, ...]:
    """Return `skips` when every encoder whose states are read has that many layers to leave out."""
    slots = [slot for slot in family.clip_slots if slot.layer is not None]
    # hidden_states[-(skip + 1)] of all layers and the embeddings, or one layer further down
    most = min(
        (getattr(pipe, slot.encoder).config.num_hidden_layers - (slot.layer == "penultimate") for slot in slots),
        default=None,
    )
    for skip in skips:
        if skip is not None and most is None:
            raise ValueError(f"{family.name} reads no layers of its CLIP encoder; leave clip_skip out.")
        if skip is not None and not (type(skip) is int and 0 <= skip <= most):
            raise ValueError(f"clip_skip is {skip!r}, this pipeline can skip 0 to {most} layers; give one of these.")
    return skips


def _whole_length(pipe: DiffusionPipeline, given: int | None) -> int:
    """Return the tokens that T5's rows have at least."""
    options = _call_options(type(pipe))
    if given is None:
        return options.get("max_sequence_length", 1)
    if "max_sequence_length" not in options:
        raise ValueError(f"max_sequence_length is for T5, which {type(pipe).__name__} does not have; leave it out.")
    if type(given) is not int or given < 1:
        raise ValueError(f"max_sequence_length is {given!r}, it starts at 1; give a whole number.")
    return given


def _reader(pipe: DiffusionPipeline, slot: Slot) -> Reader:
    config = getattr(pipe, slot.encoder).config
    return Reader(getattr(pipe, slot.tokenizer), config.max_position_embeddings if slot.kind == "clip" else None)


def _encode(pipe: DiffusionPipeline, slot: Slot, rows: Rows, skips: Sequence[int | None], pooled: str) -> list[Encoded]:
    """Return what the encoder of `slot` makes of each side, weighted."""
    encoder = getattr(pipe, slot.encoder)
    skips = skips[: len(rows.sides)]
    reads = [_read(encoder, slot, skip) for skip in skips]
    longest = max(len(whole_row(text)) for side in rows.sides for text in side) if rows.layout is not None else 0
    wholes: list[Read | None] = [None] * len(skips)
    if rows.layout not in (None, LONGALIGN) and slot.layer is not None and longest > len(rows.fill):
        whole = reader_of_whole(encoder, row_length(longest), device=get_module_execution_device(encoder))
        wholes = [_read_inside(whole, slot, skip) for skip in skips]
    options = {"fill": rows.fill, "count": rows.count, "pooled": pooled}
    places = range(len(rows.sides))

    def encoded_by(place: int, part: slice) -> list[Encoded]:
        if rows.layout is None:
            return encode_windows(reads[place], rows.sides[part], **options)
        more = {"layout": rows.layout, "read_whole": wholes[place]}
        return encode_sentences(reads[place], rows.sides[part], rows.firsts[part], **more, **options)

    if len(set(skips)) == 1:  # what both sides have in common is encoded once
        encoded = encoded_by(0, slice(None))
    else:
        encoded = [encoded_by(place, slice(place, place + 1))[0] for place in places]
    return [
        one
        if weights is None or one.states is None
        else one._replace(states=weigh(one.states, weights, window=len(rows.fill)))
        for one, weights in zip(encoded, rows.weights, strict=True)
    ]


def _read_inside(enter: Callable[[], AbstractContextManager[nn.Module]], slot: Slot, skip: int | None) -> Read:
    def read(ids: Tensor) -> Encoded:
        with enter() as encoder:
            return _read(encoder, slot, skip)(ids)

    return read


def _read(encoder: nn.Module, slot: Slot, skip: int | None) -> Read:
    """Return the encoder as a function from ids to the states and the pooled vector that `slot` names."""
    # An offloaded encoder lies elsewhere between calls: this is where its hooks bring it.
    device = get_module_execution_device(encoder)
    if slot.kind == "t5":
        return lambda ids: Encoded(encoder(ids.to(device))[0], None)
    by_layer = slot.layer == "penultimate" or (slot.layer == "last" and skip is not None)

    def read(ids: Tensor) -> Encoded:
        output = encoder(ids.to(device), output_hidden_states=True) if by_layer else encoder(ids.to(device))
        if slot.layer is None:
            states = None
        elif slot.layer == "penultimate":
            states = output.hidden_states[-((skip or 0) + 2)]
        elif skip is None:
            states = output[0]
        else:  # CLIPTextModel of transformers 5.6 and newer holds what older ones had in `text_model`
            states = getattr(encoder, "text_model", encoder).final_layer_norm(output.hidden_states[-(skip + 1)])
        vector = {"projected": "text_embeds", "pooler_output": "pooler_output", None: None}[slot.pooled]
        return Encoded(states, None if vector is None else getattr(output, vector))

    return read


def _named(
    pipe: DiffusionPipeline, family: Family, encoded: Sequence[Encoded], *, prefix: str, length: int
) -> dict[str, Tensor]:
    """Return one side's states and pooled vectors as its pipeline joins them, under its names."""
    clips = [one.states for slot, one in zip(family.slots, encoded, strict=True) if slot.kind == "clip" and slot.layer]
    wholes = [
        one.states.to(getattr(pipe, slot.encoder).dtype)
        for slot, one in zip(family.slots, encoded, strict=True)
        if slot.kind == "t5"
    ]
    lead = getattr(pipe, family.slots[0 if family.denoiser == "transformer" else -1].encoder)
    result = {}
    if clips:
        states = torch.cat([one.to(clips[-1].device) for one in clips], dim=-1).to(lead.dtype)
        if family.denoiser == "transformer":
            if not wholes:  # Stable Diffusion 3 without its T5
                width = pipe.transformer.config.joint_attention_dim
                wholes = [states.new_zeros(len(states), length, width)]
            padded = nn.functional.pad(states, (0, wholes[0].shape[-1] - states.shape[-1]))
            states = torch.cat([padded, wholes[0].to(padded.device)], dim=-2)
    else:
        (states,) = wholes
    vectors = [one.pooled for one in encoded if one.pooled is not None]
    result[f"{prefix}prompt_embeds"] = states
    if vectors:
        result[f"{prefix}pooled_prompt_embeds"] = torch.cat([one.to(vectors[-1].device) for one in vectors], dim=-1)
    return result
