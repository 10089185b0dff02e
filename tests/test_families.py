"""A family is told by its components, as objects and as in model_index.json."""

import subprocess
import sys

import pytest

import debias_sd
from debias_sd.pipelines.families import family_of

CLIP, PROJECTED, T5 = (
    ["transformers", name] for name in ("CLIPTextModel", "CLIPTextModelWithProjection", "T5EncoderModel")
)
TOKENIZER = ["transformers", "CLIPTokenizer"]
NOTHING = [None, None]
UNET, SD3, FLUX = (
    ["diffusers", name] for name in ("UNet2DConditionModel", "SD3Transformer2DModel", "FluxTransformer2DModel")
)

INDEXES = {
    "Stable Diffusion": {"text_encoder": CLIP, "tokenizer": TOKENIZER, "unet": UNET, "requires_safety_checker": False},
    "Stable Diffusion XL": {
        "text_encoder": CLIP, "text_encoder_2": PROJECTED, "unet": UNET,
        "tokenizer": TOKENIZER, "tokenizer_2": TOKENIZER,
        "force_zeros_for_empty_prompt": True,
        "image_encoder": NOTHING,
    },
    "Stable Diffusion XL refiner": {
        "text_encoder": NOTHING, "text_encoder_2": PROJECTED, "unet": UNET,
        "tokenizer": NOTHING, "tokenizer_2": TOKENIZER,
    },
    "Stable Diffusion 3": {
        "text_encoder": PROJECTED, "text_encoder_2": PROJECTED, "text_encoder_3": T5, "transformer": SD3,
        "tokenizer": TOKENIZER, "tokenizer_2": TOKENIZER, "tokenizer_3": TOKENIZER,
    },
    "FLUX": {
        "text_encoder": CLIP, "text_encoder_2": T5, "transformer": FLUX,
        "tokenizer": TOKENIZER, "tokenizer_2": TOKENIZER,
    },
}  # fmt: skip

# Encoder, tokenizer, kind, layer, pooled: what diffusers' own encode_prompt reads.
SLOTS = {
    "Stable Diffusion": [("text_encoder", "tokenizer", "clip", "last", None)],
    "Stable Diffusion XL": [
        ("text_encoder", "tokenizer", "clip", "penultimate", None),
        ("text_encoder_2", "tokenizer_2", "clip", "penultimate", "projected"),
    ],
    "Stable Diffusion XL refiner": [("text_encoder_2", "tokenizer_2", "clip", "penultimate", "projected")],
    "Stable Diffusion 3": [
        ("text_encoder", "tokenizer", "clip", "penultimate", "projected"),
        ("text_encoder_2", "tokenizer_2", "clip", "penultimate", "projected"),
        ("text_encoder_3", "tokenizer_3", "t5", "last", None),
    ],
    "FLUX": [
        ("text_encoder", "tokenizer", "clip", None, "pooler_output"),
        ("text_encoder_2", "tokenizer_2", "t5", "last", None),
    ],
}


@pytest.mark.parametrize("name", INDEXES)
def test_each_family_has_its_slots(name):
    family = family_of(INDEXES[name], "x")
    assert family.name == name
    assert [(s.encoder, s.tokenizer, s.kind, s.layer, s.pooled) for s in family.slots] == SLOTS[name]
    assert family.denoiser == ("transformer" if name in ("Stable Diffusion 3", "FLUX") else "unet")
    assert [slot.encoder for slot in family.clip_slots] == [s[0] for s in SLOTS[name] if s[2] == "clip"]


@pytest.mark.parametrize("name", ["Stable Diffusion 3", "FLUX"])
@pytest.mark.parametrize("absent", [None, NOTHING])
def test_the_t5_may_be_absent(name, absent):
    t5 = SLOTS[name][-1][0]
    family = family_of(INDEXES[name] | {t5: absent}, "x")
    assert family.name == name
    assert [slot.encoder for slot in family.slots] == [s[0] for s in SLOTS[name][:-1]]


class CLIPTextModel:
    pass


class OptimizedModule:
    _orig_mod = CLIPTextModel()


@pytest.mark.parametrize("encoder", [CLIPTextModel(), OptimizedModule()], ids=["plain", "compiled"])
def test_objects_are_told_by_their_class(encoder):
    parts = {"text_encoder": encoder, "tokenizer": object(), "unet": object(), "vae": None}
    assert family_of(parts, "x").name == "Stable Diffusion"


OTHERS = {
    "KolorsPipeline": ({"text_encoder": ["kolors", "ChatGLMModel"], "unet": UNET}, "text_encoder ChatGLMModel"),
    "PixArtAlphaPipeline": ({"text_encoder": T5, "transformer": NOTHING}, "text_encoder T5EncoderModel"),
    "HunyuanDiTPipeline": (
        {"text_encoder": ["transformers", "BertModel"], "text_encoder_2": T5, "transformer": NOTHING},
        "text_encoder BertModel, text_encoder_2 T5EncoderModel",
    ),
    "KandinskyV22PriorPipeline": ({"text_encoder": PROJECTED, "prior": NOTHING}, "CLIPTextModelWithProjection"),
    "StableCascadePriorPipeline": ({"text_encoder": PROJECTED, "prior": NOTHING}, "CLIPTextModelWithProjection"),
    "HiDreamImagePipeline": (
        INDEXES["Stable Diffusion 3"] | {"text_encoder_4": ["transformers", "LlamaForCausalLM"]}, "LlamaForCausalLM"
    ),
    "StableUnCLIPPipeline": (INDEXES["Stable Diffusion"] | {"prior_text_encoder": PROJECTED}, "prior_text_encoder"),
    "no encoder": ({"text_encoder": NOTHING, "unet": UNET}, "text encoders: none"),
    "one encoder of SDXL": ({"text_encoder": PROJECTED, "unet": UNET}, "CLIPTextModelWithProjection"),
    "no denoiser": ({"text_encoder": CLIP}, "CLIPTextModel"),
    "odd entry": ({"text_encoder": [], "unet": UNET}, "text encoders: none"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_families_are_told_in_one_sentence(name):
    components, has = OTHERS[name]
    with pytest.raises(ValueError, match="is of another family") as caught:
        family_of(components, name)
    text = str(caught.value)
    assert text.startswith(name)
    assert has in text
    assert "\n" not in text


@pytest.mark.parametrize("name", INDEXES)
@pytest.mark.parametrize("absent", ["left out", NOTHING])
def test_an_encoder_without_its_tokenizer_is_told(name, absent):
    for encoder, tokenizer, *_ in SLOTS[name]:
        parts = INDEXES[name] | {tokenizer: absent}
        if absent == "left out":
            del parts[tokenizer]
        with pytest.raises(ValueError, match=f"^x has a {encoder} and no {tokenizer}, as {name} has; give a pipeline"):
            family_of(parts, "x")


@pytest.mark.parametrize("use", ["encode_prompt", "count_tokens", "describe_encoders", "with_text_encoder"])
def test_what_is_no_pipeline_is_told_in_one_sentence(use):
    more = {"encode_prompt": ["a cat"], "count_tokens": ["a cat"]}.get(use, [])
    with pytest.raises(ValueError, match="^pipe is of type dict, expected a diffusers pipeline; make one by load_"):
        getattr(debias_sd, use)({"unet": 1}, *more)


def test_it_loads_no_torch_and_no_diffusers():
    heavy = "{'torch', 'transformers', 'diffusers'}"
    code = f"import sys, debias_sd.pipelines.families; print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
