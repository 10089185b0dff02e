"""Which text encoders a pipeline has, and what of each of them its denoiser reads.

Decided by components, not by class names: text-to-image, inpainting, ControlNet, IP-Adapter and AnimateDiff forms of a
family share its text encoders. What each one gives was read from diffusers' own `encode_prompt` (0.42).
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Its blocks read the prompt by code of their own, which `encode_prompt` would have to follow one by one.
INSTEAD_OF_MODULAR = (
    "these are not supported yet; load the same model by DiffusionPipeline.from_pretrained() or load_debias_pipeline()"
)
SUPPORTED = "Stable Diffusion 1.x, 2.x, XL with its refiner, 3 or FLUX"
_CLIP = "CLIPTextModel"
_CLIP_PROJECTED = "CLIPTextModelWithProjection"
_T5 = "T5EncoderModel"


@dataclass(frozen=True)
class Slot:
    """One text encoder of a family.

    `kind` is "clip" or "t5". `layer` names the states that condition the denoiser: "last" is after the final norm,
    "penultimate" is `hidden_states[-2]` before it, None gives none. `pooled` is "projected" (`text_embeds`),
    "pooler_output" or None.
    """

    encoder: str
    tokenizer: str
    kind: str
    layer: str | None
    pooled: str | None


@dataclass(frozen=True)
class Family:
    """A family of pipelines with the slots that the pipeline at hand fills, in the order in which it reads them."""

    name: str
    slots: tuple[Slot, ...]
    denoiser: str

    @property
    def clip_slots(self) -> tuple[Slot, ...]:
        """The slots with a CLIP text encoder."""
        return tuple(slot for slot in self.slots if slot.kind == "clip")


def _slot(number: int, *, kind: str = "clip", layer: str | None, pooled: str | None) -> Slot:
    suffix = "" if number == 1 else f"_{number}"
    return Slot("text_encoder" + suffix, "tokenizer" + suffix, kind, layer, pooled)


# Name, denoiser, and each slot with the class of its encoder.
_SDXL_2 = _slot(2, layer="penultimate", pooled="projected")
_FAMILIES: tuple[tuple[str, str, tuple[tuple[Slot, str], ...]], ...] = (
    ("Stable Diffusion", "unet", ((_slot(1, layer="last", pooled=None), _CLIP),)),
    (
        "Stable Diffusion XL",
        "unet",
        ((_slot(1, layer="penultimate", pooled=None), _CLIP), (_SDXL_2, _CLIP_PROJECTED)),
    ),
    ("Stable Diffusion XL refiner", "unet", ((_SDXL_2, _CLIP_PROJECTED),)),
    (
        "Stable Diffusion 3",
        "transformer",
        (
            (_slot(1, layer="penultimate", pooled="projected"), _CLIP_PROJECTED),
            (_slot(2, layer="penultimate", pooled="projected"), _CLIP_PROJECTED),
            (_slot(3, kind="t5", layer="last", pooled=None), _T5),
        ),
    ),
    (
        "FLUX",
        "transformer",
        ((_slot(1, layer=None, pooled="pooler_output"), _CLIP), (_slot(2, kind="t5", layer="last", pooled=None), _T5)),
    ),
)


def family_of(components: Mapping[str, object], name: str) -> Family:
    """Return the family of a pipeline; `name` is what a fault calls it.

    Args:
        components: by name, as objects (`pipe.components`) or as in model_index.json (`[library, class]`). An encoder
            that is None is not there: Stable Diffusion 3 and FLUX do without their T5.
        name: the pipeline's class, folder or id.

    Raises ValueError with one sentence for a pipeline of another family.
    """
    found = {key: _class_name(part) for key, part in components.items() if "text_encoder" in key}
    found = {key: kind for key, kind in found.items() if kind is not None}
    for family, denoiser, slots in _FAMILIES:
        present = tuple((slot, kind) for slot, kind in slots if slot.kind == "clip" or slot.encoder in found)
        if denoiser in components and found == {slot.encoder: kind for slot, kind in present}:
            lacks = [slot for slot, _ in present if _class_name(components.get(slot.tokenizer)) is None]
            if lacks:
                raise ValueError(
                    f"{name} has a {lacks[0].encoder} and no {lacks[0].tokenizer}, as {family} has; give a pipeline of "
                    "this family, whole."
                )
            return Family(family, tuple(slot for slot, _ in present), denoiser)
    has = ", ".join(f"{key} {kind}" for key, kind in sorted(found.items())) or "none"
    raise ValueError(
        f"{name} is of another family (text encoders: {has}) but must be of {SUPPORTED}; give a pipeline of one of "
        "these with its text encoders."
    )


def family_of_pipeline(pipe: object) -> Family:
    """Return the family of a loaded pipeline; ValueError with one sentence for another family, and for no pipeline."""
    if any(kind.__name__ == "ModularPipeline" for kind in type(pipe).__mro__):
        raise ValueError(f"{type(pipe).__name__} is a pipeline of Modular Diffusers; {INSTEAD_OF_MODULAR}.")
    components = getattr(pipe, "components", None)
    if not isinstance(components, Mapping):
        raise ValueError(
            f"pipe is of type {type(pipe).__name__}, expected a diffusers pipeline; make one by load_debias_pipeline()."
        )
    return family_of(components, type(pipe).__name__)


def _class_name(part: object) -> str | None:
    if part is None:
        return None
    if isinstance(part, list | tuple):  # model_index.json
        return part[1] if len(part) == 2 else None
    return type(getattr(part, "_orig_mod", part)).__name__  # torch.compile wraps a model
