"""What lies where in a checkpoint: its text tower in OpenAI's naming, and a name for everything that is left out.

Keys tell the layout. Every text tower of the CLIP family holds one `token_embedding.weight`; what comes in front
of it says the naming (OpenAI's, transformers' with or without `text_model.`) and the place (a bare state dict, a
training checkpoint, one of the encoders of a Stable Diffusion file). Each other key belongs to the tower, to a group
that `left_out` counts, or is an error.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from debias_sd.checkpoints.keys import State, shown, text_from_openai, text_to_openai
from debias_sd.checkpoints.reading import ANCHOR, Source
from debias_sd.text import count_of

TRAINED = "positional_embedding_res"  # Long-CLIP's second table
BIAS = "logit_bias"  # of the sigmoid loss: added to the similarities of texts and images, in no tower
_TEXT = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
_TEXT_MODEL = ("text_model.", "text_projection")
_FLAT = ("embeddings.", "encoder.", "final_layer_norm.", "text_projection")
_IMAGE = ("visual.", "vision_model.", "visual_projection.")
_CONSTANTS = re.compile(
    r"(.*\.)?(attn_mask|position_ids|input_resolution|context_length|vocab_size|image_mean|image_std)"
)
# What may surround a text tower, by full key.
_AROUND = (
    ("UNet or transformer", re.compile(r"model\.diffusion_model\.")),
    ("VAE", re.compile(r"(first_stage_model|vae)\.")),
    ("averaged weights", re.compile(r"model_ema\.")),
    ("T5 text encoder", re.compile(r"(text_encoders\.)?t5xxl\.")),
    ("noise schedule", re.compile(
        r"(model\.|denoiser\.)?(betas|sigmas|alphas_cumprod\w*|sqrt_\w+|log_one_minus_\w+|posterior_\w+|logvar|"
        r"lvlb_weights|log_sigmas|scale_factor)$"
    )),
)  # fmt: skip
_PLACES = (
    (r"cond_stage_model\.transformer\.", "sd1", "Stable Diffusion 1.x single file"),
    (r"cond_stage_model\.model\.", "sd2", "Stable Diffusion 2.x single file"),
    (r"conditioner\.embedders\.0\.transformer\.", "sdxl", "Stable Diffusion XL single file, encoder 1"),
    (r"conditioner\.embedders\.1\.model\.", "sdxl-2", "Stable Diffusion XL single file, encoder 2"),
    (r"conditioner\.embedders\.0\.model\.", "sdxl-2", "Stable Diffusion XL refiner single file"),
    (r"(text_encoders\.)?clip_l\.", "sd3", "encoder CLIP-L of a Stable Diffusion 3 or FLUX single file"),
    (r"(text_encoders\.)?clip_g\.", "sdxl-2", "encoder CLIP-G of a Stable Diffusion 3 single file"),
    (r"(text_encoders\.)?clip_h\.", "sd2", "encoder CLIP-H of a single file"),
)
_REFUSED = (
    (r".*\.theta",
     "its weights are angles and lengths (GmP, .theta and .r), convert them with their author's script first"),
    (r"(.*\.)?(text_model\.head\.weight|text_projection\.bias)",  # a logit_bias alone only tells of the sigmoid loss
     "a SigLIP text tower reads all tokens at once and pools the last, give a CLIP checkpoint"),
    (r"(.*\.)?cls_emb", "a CoCa text tower pools a token of its own, give a CLIP checkpoint"),
    (r"(.*\.)?word_embeddings\.weight", "a BERT-like text tower reads all tokens at once, give a CLIP checkpoint"),
    (r"(.*\.)?ls_1\.gamma", "a CLIPTextModel has no layer scales, give a checkpoint without"),
)  # fmt: skip


class _Place(NamedTuple):
    """One text tower in a checkpoint: the prefix of its keys, and its naming."""

    prefix: str
    naming: str  # "openai", "text_model" or "flat"

    @property
    def root(self) -> str:
        """The prefix of the keys of the whole CLIP that the tower belongs to."""
        return self.prefix.removesuffix("text.") if self.naming == "openai" else self.prefix

    @property
    def names(self) -> tuple[str, ...]:
        return {"openai": _TEXT, "text_model": _TEXT_MODEL, "flat": _FLAT}[self.naming]


@dataclass(frozen=True)
class Tower:
    """The text tower of a checkpoint in OpenAI's naming, and all that lies beside it."""

    layout: str
    target: str | None
    """The use that its place implies: sd1, sd2, sdxl, sdxl-2, sd3; None for a bare CLIP."""
    naming: str
    """Of the source: openai, text_model or flat."""
    text: State
    """With `positional_embedding_res` where the source has two position tables."""
    image: State
    """The image tower by the source's own keys; empty when it has none."""
    logit_scale: Tensor | None
    left_out: dict[str, int]
    """Groups of the source that belong to neither tower, with the number of their tensors."""
    custom_text: bool = False
    """Whether the tower's keys start with `text.`, open_clip's custom-text layout."""


def find_tower(source: Source, *, part: int | None = None) -> Tower:
    """Return the text tower of `source`, its `part`-th (from 1) where it has several.

    Raises ValueError for a checkpoint without a CLIP text tower, with several and no `part`, and for unknown keys.
    """
    _refuse_other_families(source)
    places = _places(source)
    place = _choose(source, places, part)
    prefixes = [other.prefix for other in places]
    text: dict[str, Tensor] = {}
    image: dict[str, Tensor] = {}
    logit_scale = None
    left_out: Counter[str] = Counter(dict.fromkeys(source.beside, 1))
    for key, tensor in source.tensors.items():
        group = _group(key, place, prefixes)
        if group == "text":
            text[key.removeprefix(place.prefix)] = tensor
        elif group == "image":
            image[key.removeprefix(place.root)] = tensor
        elif group == "logit_scale":
            logit_scale = tensor
        elif group is None:
            raise ValueError(
                f"{source.name} holds {shown(key)}, which is not part of a CLIP model or of a Stable Diffusion file; "
                "take it out of the file, or give the text encoder alone."
            )
        else:
            left_out[group] += 1
    layout, target = _layout(source, place, text, image, left_out)
    return Tower(
        layout=layout,
        target=target,
        naming=place.naming,
        text=_to_openai(text, place),
        image=image,
        logit_scale=logit_scale,
        left_out=dict(left_out),
        custom_text=place.prefix != place.root,
    )


def _places(source: Source) -> list[_Place]:
    """Return every text tower of `source`, the first encoder of a pipeline first."""
    heads = [key.removesuffix(ANCHOR) for key in source.tensors if key == ANCHOR or key.endswith("." + ANCHOR)]
    places = []
    for head in heads:
        if head.endswith("text_model.embeddings."):
            places.append(_Place(head.removesuffix("text_model.embeddings."), "text_model"))
        elif head.endswith("embeddings."):
            places.append(_Place(head.removesuffix("embeddings."), "flat"))
        else:
            places.append(_Place(head, "openai"))
    return sorted(places, key=lambda place: ("clip_g." in place.prefix, place.prefix))


def _choose(source: Source, places: list[_Place], part: int | None) -> _Place:
    if not places:
        raise ValueError(_nothing_found(source))
    if part is None and len(places) > 1:
        names = ", ".join(f"{number} ({shown(place.prefix.rstrip('.'))})" for number, place in enumerate(places, 1))
        raise ValueError(
            f"{source.name} holds {count_of(len(places), 'text encoder')}; choose one with --part: {names}."
        )
    if part is not None and not 1 <= part <= len(places):
        raise ValueError(f"--part is {part} but {source.name} holds {len(places)}; give 1 to {len(places)}.")
    return places[(part or 1) - 1]


def _group(key: str, place: _Place, prefixes: list[str]) -> str | None:
    """Return "text", "image", "logit_scale", the group in which `key` is left out, or None for an unknown key."""
    owners = [prefix for prefix in prefixes if key.startswith(prefix.removesuffix("transformer."))]
    if owners and max(owners, key=len) != place.prefix:
        return "other text encoder"
    if _CONSTANTS.fullmatch(key):
        return "constants"
    if key.startswith(place.prefix) and key.removeprefix(place.prefix).startswith(place.names):
        return "text"
    inside = key.removeprefix(place.root) if key.startswith(place.root) else ""
    if inside.startswith(_IMAGE):
        return "image"
    for name in ("logit_scale", BIAS):
        if key in (place.root + name, place.root.removesuffix("transformer.") + name):
            return name
    if inside.startswith("mask_net."):
        return "mask_net"
    return next((name for name, pattern in _AROUND if pattern.match(key)), None)


def _layout(
    source: Source, place: _Place, text: Mapping[str, Tensor], image: Mapping[str, Tensor], left_out: Mapping[str, int]
) -> tuple[str, str | None]:
    for pattern, target, name in _PLACES:
        if re.match(pattern, place.prefix):
            return name, target
    if place.naming != "openai":
        kind = "CLIPModel" if image else "CLIPTextModel"
        if not image and any(name.startswith("text_projection") for name in text):
            kind = "CLIPTextModelWithProjection"
        return f"transformers {kind}" + (", flat keys" if place.naming == "flat" else ""), None
    custom = place.prefix != place.root
    if TRAINED in text:
        name = "SmartCLIP" if "mask_net" in left_out else "Long-CLIP"
        return name + (" in open_clip's custom-text layout" if custom else ""), None
    if source.format == "TorchScript archive" or any(key.endswith("input_resolution") for key in source.tensors):
        return "OpenAI CLIP", None
    return ("open_clip, custom-text layout" if custom else "OpenAI or open_clip naming"), None


def _to_openai(text: State, place: _Place) -> State:
    if place.naming == "openai":
        # Tensors without content: the names and shapes are checked, nothing is copied.
        text_from_openai({name: tensor.to("meta") for name, tensor in text.items() if name != TRAINED})
        return text
    bare = {name: text.pop(name) for name in ("text_projection",) if name in text}  # as single files have it
    return text_to_openai(text) | bare


def _refuse_other_families(source: Source) -> None:
    """Raise ValueError, with the reason, for a text tower that is not CLIP's causal one."""
    for pattern, reason in _REFUSED:
        found = [name for name in source.tensors if re.fullmatch(pattern, name) and "visual" not in name]
        if found:
            raise ValueError(f"{source.name} holds {shown(found[0])}: {reason}.")


def _nothing_found(source: Source) -> str:
    names = list(source.tensors)
    if any(re.match(r"(.*\.)?(resblocks|layers)\.0\.", name) for name in names):
        return (
            f"{source.name} holds blocks of a transformer but no token embedding ({shown(names[0])} first); save the "
            "state_dict of the whole CLIP model, not of a part."
        )
    first = shown(names[0])
    return f"{source.name} holds no CLIP text tower ({first} first); give a checkpoint of a CLIP text encoder."
