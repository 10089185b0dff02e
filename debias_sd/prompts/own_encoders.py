"""The text encoders that a base pipeline has, without its denoiser: what each reads of a prompt for it, and with what.

Of a folder or a hub id only the text encoders' files are read. A single file is loaded whole: its keys say nothing of
their models without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from debias_sd.encoder import TextEncoder, text_tower
from debias_sd.encoder_folder import embedded_folder, read_known_words
from debias_sd.pipelines.base import Base, find_base
from debias_sd.pipelines.families import Family, Slot, family_of_pipeline
from debias_sd.pipelines.slots import shared_copy
from debias_sd.prompts.batch import SHORT
from debias_sd.prompts.states import Encoded


@dataclass(frozen=True)
class OwnEncoder:
    """A CLIP text encoder in the slot of its pipeline."""

    family: str
    slot: Slot
    encoder: TextEncoder


def clip_slots(base: str | Path | None, *, config: str | None = None) -> list[str]:
    """The names of a base's CLIP text encoders, found as `read_encoders` finds them; only a single file is loaded."""
    found = _find(base, config)
    family = family_of_pipeline(found.load()) if found.family is None else found.family
    return [slot.encoder for slot in family.clip_slots]


def _find(base: str | Path | None, config: str | None) -> Base:
    return find_base(base, {"dtype": torch.float32} | ({} if config is None else {"config": config}))


def read_encoders(base: str | Path | None, *, config: str | None = None, only: str | None = None) -> list[OwnEncoder]:
    """Load the CLIP text encoders of a base (a folder, hub id or single file; None: the embedded one), in float32.

    `config` is a folder or hub id of a pipeline of a single file's kind, where diffusers cannot ask the Hub for one;
    `only` the name of one of them.

    Raises ValueError with one sentence for a base of another family, and for an encoder that is lengthened already.
    """
    found = _find(base, config)
    if found.family is None:
        encoders = [own for own in _of_pipeline(found.load()) if only in (None, own.slot.encoder)]
    else:
        encoders = [
            OwnEncoder(found.family.name, slot, _in_float32(TextEncoder.load(found.name, subfolder=slot.encoder)))
            for slot in found.family.clip_slots
            if only in (None, slot.encoder)
        ]
    if base is None:  # its words are known, and are written beside its encoder's own folder
        words = read_known_words(embedded_folder("base"))
        encoders = [replace(own, encoder=replace(own.encoder, known_words=words)) for own in encoders]
    for own in encoders:
        if own.encoder.positions > SHORT:
            raise ValueError(
                f"{own.slot.encoder} of base {found.name} has {own.encoder.positions} positions already, {SHORT} are "
                "lengthened; give the pipeline as it was before."
            )
    return encoders


def _of_pipeline(pipe: object) -> list[OwnEncoder]:
    family: Family = family_of_pipeline(pipe)
    found = []
    for slot in family.clip_slots:
        model, tokenizer = pipe.components[slot.encoder], pipe.components[slot.tokenizer]
        projection = model.text_projection.weight.detach() if slot.pooled == "projected" else None
        encoder = TextEncoder(text_tower(shared_copy(model)), tokenizer, projection=projection)
        encoder.model.config.eos_token_id = encoder.model.eos_token_id = tokenizer.eos_token_id
        encoder.check()
        found.append(OwnEncoder(family.name, slot, encoder))
    return found


def _in_float32(encoder: TextEncoder) -> TextEncoder:
    return encoder.to(device=torch.device("cpu"), dtype=torch.float32)


def read_slot(encoder: TextEncoder, slot: Slot, ids: Tensor) -> Encoded:
    """Return what the denoiser reads of `encoder` in `slot` for token ids [b, L]: states [b, L, width], pooled [b, p].

    In the encoder's dtype, with gradient where that is on. The same as the pipeline's own call (`families`).
    """
    output = encoder.model(input_ids=ids.to(encoder.model.device), output_hidden_states=slot.layer == "penultimate")
    states = {"last": lambda: output.last_hidden_state, "penultimate": lambda: output.hidden_states[-2]}
    pooled = None if slot.pooled is None else output.pooler_output
    if slot.pooled == "projected":
        pooled = pooled @ encoder.projection.to(pooled.device).T
    return Encoded(states[slot.layer]() if slot.layer else None, pooled)
