"""Every family in every form: swapped, read to the end, and the base bit for bit what it was."""

import hashlib
import json

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    StableDiffusionXLControlNetPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLPipeline,
)
from PIL import Image
from tiny import END, LONG_PROMPT, draw, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import (
    FAMILIES,
    SIDE,
    WIDTH_2,
    WIDTH_SD2,
    add_ip_adapter,
    draw_family,
    picture,
    tiny_animatediff,
    tiny_controlnet_pipeline,
    tiny_instruct_pix2pix,
    tiny_sdxl,
)

from debias_sd.encoder import TextEncoder
from debias_sd.pipelines.load import load_debias_pipeline, with_text_encoder
from debias_sd.pipelines.slots import describe_encoders


def encoder_for(name: str) -> TextEncoder | None:
    return {"sd2": tiny_encoder(width=WIDTH_SD2), "refiner": None}.get(name, tiny_encoder())


def fingerprint(pipe: DiffusionPipeline) -> dict[str, str]:
    """A digest of every component, its settings and state, and of the pipeline's own."""
    found = {"pipeline": repr(sorted(pipe.config.items())) + repr(sorted(vars(pipe)))}
    for name, part in pipe.components.items():
        digest = hashlib.sha256()
        if isinstance(part, torch.nn.Module):
            settings = part.config.to_dict() if hasattr(part.config, "to_dict") else dict(part.config)
            digest.update(repr((type(part), part, part.training, sorted(vars(part)))).encode())
            digest.update(json.dumps(settings, default=str, sort_keys=True).encode())
            for key, tensor in [*part.named_parameters(), *part.named_buffers()]:
                digest.update(repr((key, tensor.dtype, tensor.device, tensor.requires_grad)).encode())
                digest.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif hasattr(part, "backend_tokenizer"):
            digest.update(part.backend_tokenizer.to_str().encode())
            digest.update(repr((part.model_max_length, part.pad_token_id, part.padding_side, len(part))).encode())
        else:
            digest.update(repr(part and sorted(vars(part).items())).encode())
        found[name] = digest.hexdigest()
    return found


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request):
    """Name, base, and the base with a given encoder (the refiner: with its own stretched)."""
    base = FAMILIES[request.param]()
    return request.param, base, with_text_encoder(base, encoder_for(request.param))


ROWS = {
    "sd": [("text_encoder", "CLIPTextModel", 248, 32, END, "given")],
    "sd2": [("text_encoder", "CLIPTextModel", 248, 64, 0, "given")],
    "sdxl": [
        ("text_encoder", "CLIPTextModel", 248, 32, END, "given"),
        ("text_encoder_2", "CLIPTextModelWithProjection", 248, 48, 0, "stretched"),
    ],
    "refiner": [("text_encoder_2", "CLIPTextModelWithProjection", 248, 48, 0, "stretched")],
    "sd3": [
        ("text_encoder", "CLIPTextModelWithProjection", 248, 32, END, "given"),
        ("text_encoder_2", "CLIPTextModelWithProjection", 248, 48, 0, "stretched"),
        ("text_encoder_3", "T5EncoderModel", 512, 96, 0, "base"),
    ],
    "flux": [
        ("text_encoder", "CLIPTextModel", 248, 32, END, "given"),
        ("text_encoder_2", "T5EncoderModel", 512, 96, 0, "base"),
    ],
}


def test_the_result_says_what_is_in_its_slots(family):
    name, base, pipe = family
    assert type(pipe) is type(base)
    found = [(r.slot, r.kind, r.positions, r.width, r.pad_id, r.origin) for r in describe_encoders(pipe)]
    assert found == ROWS[name]
    was = [(slot, kind, 77 if kind.startswith("CLIP") else reads) for slot, kind, reads, *_ in ROWS[name]]
    assert [(r.slot, r.kind, r.positions) for r in describe_encoders(base)] == was
    assert {r.origin for r in describe_encoders(base)} == {"base"}
    given = [row for row in ROWS[name] if row[-1] != "base"]
    assert [getattr(pipe, slot).config.max_position_embeddings for slot, *_ in given] == [248] * len(given)
    assert getattr(pipe, "tokenizer_max_length", 248) == 248
    shared = set(base.components) - {
        part for slot, *_ in given for part in (slot, slot.replace("text_encoder", "tokenizer"))
    }
    assert all(getattr(pipe, part) is getattr(base, part) for part in shared - {"scheduler"})
    assert pipe.scheduler is not base.scheduler


def test_optional_settings_are_kept(family):
    name, base, pipe = family
    settings = {key: value for key, value in base.config.items() if not isinstance(value, tuple)}
    assert settings == {key: value for key, value in pipe.config.items() if not isinstance(value, tuple)}
    kept = {
        "sd": "requires_safety_checker",
        "sdxl": "force_zeros_for_empty_prompt",
        "refiner": "requires_aesthetics_score",
    }
    assert name not in kept or kept[name] in settings
    assert pipe._progress_bar_config == {"disable": True}


def test_the_base_stays_bit_identical(family):
    name, base, _ = family
    before = draw_family(base, prompt="a red cat")
    encoder = encoder_for(name)
    prints = fingerprint(base)
    state = {} if encoder is None else {key: value.clone() for key, value in encoder.model.state_dict().items()}
    pipe = with_text_encoder(base, encoder)
    assert draw_family(pipe, prompt=LONG_PROMPT).shape == (1, 3, SIDE, SIDE)
    for slot, *_, origin in ROWS[name]:
        if origin != "base":
            getattr(pipe, slot).to(torch.float64)
    assert fingerprint(base) == prints
    assert torch.equal(draw_family(base, prompt="a red cat"), before)
    assert all(torch.equal(value, encoder.model.state_dict()[key]) for key, value in state.items())


def branches(pipe: DiffusionPipeline, name: str, prompt: str) -> dict[str, torch.Tensor]:
    """What each text encoder gives to the denoiser."""
    if name in ("sd", "sd2"):
        return {"states": pipe.encode_prompt(prompt, "cpu", 1, False)[0]}
    if name in ("sdxl", "refiner"):
        states, _, pooled, _ = pipe.encode_prompt(prompt, do_classifier_free_guidance=False)
        parts = (
            {"states": states} if name == "refiner" else {"states 1": states[..., :32], "states 2": states[..., 32:]}
        )
        return parts | {"pooled": pooled}
    if name == "sd3":
        states, _, pooled, _ = pipe.encode_prompt(prompt, prompt, prompt, do_classifier_free_guidance=False)
        assert states[:, :248, 32 + WIDTH_2 :].abs().max() == 0
        first = states[:, :248]
        return {"states 1": first[..., :32], "states 2": first[..., 32 : 32 + WIDTH_2],
                "pooled 1": pooled[:, :32], "pooled 2": pooled[:, 32:]}  # fmt: skip
    return {"pooled": pipe.encode_prompt(prompt, prompt)[1]}


def test_a_difference_in_word_150_alone_is_in_every_branch(family):
    name, base, pipe = family
    words = ["cat"] * 200
    other = [*words[:149], "dog", *words[150:]]
    one, two = (branches(pipe, name, " ".join(text)) for text in (words, other))
    assert all(not torch.equal(one[branch], two[branch]) for branch in one)
    if name != "sd3":  # `branches` reads 248 states there
        one, two = (branches(base, name, " ".join(text)) for text in (words, other))
        assert all(torch.equal(one[branch], two[branch]) for branch in one)
    pictures = [draw_family(pipe, prompt=" ".join(text)) for text in (words, other)]
    assert not torch.equal(*pictures)


def test_loaded_from_a_folder_it_draws_the_same(family, tmp_path):
    name, base, pipe = family
    base.save_pretrained(tmp_path)
    encoder = encoder_for(name)
    loaded = load_debias_pipeline(tmp_path, encoder)
    loaded.set_progress_bar_config(disable=True)
    assert type(loaded) is type(base)
    assert describe_encoders(loaded) == describe_encoders(pipe)
    assert torch.allclose(draw_family(loaded, prompt=LONG_PROMPT), draw_family(pipe, prompt=LONG_PROMPT), atol=1e-4)


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (tiny_controlnet_pipeline, {"height": SIDE, "width": SIDE}),
        (tiny_instruct_pix2pix, {}),
        (
            lambda: StableDiffusionXLInpaintPipeline(**tiny_sdxl().components),
            {"mask_image": Image.new("L", (SIDE, SIDE), 255), "strength": 1.0, "height": SIDE, "width": SIDE},
        ),
    ],
    ids=["ControlNet", "instruct-pix2pix", "SDXL inpainting"],
)
def test_forms_that_start_from_a_picture(make, inputs):
    base = make()
    base.set_progress_bar_config(disable=True)
    pipe = with_text_encoder(base, tiny_encoder())
    assert type(pipe) is type(base)
    words = ["cat"] * 200
    first, second = (
        draw(pipe, prompt=" ".join([*words[:149], word, *words[150:]]), image=picture(), **inputs)
        for word in ("a", "b")
    )
    assert first.shape == (1, 3, SIDE, SIDE)
    assert not torch.equal(first, second)


def test_sdxl_with_controlnet_and_animatediff_read_to_the_end():
    controlnet = tiny_controlnet_pipeline().controlnet
    parts = tiny_sdxl().components
    assert "controlnet" not in parts
    base = StableDiffusionXLControlNetPipeline(**parts, controlnet=controlnet, add_watermarker=False)
    pipe = with_text_encoder(base, tiny_encoder())
    assert (type(pipe), pipe.controlnet) == (StableDiffusionXLControlNetPipeline, controlnet)
    assert pipe.encode_prompt(LONG_PROMPT)[0].shape == (1, 248, 80)
    base = tiny_animatediff()
    pipe = with_text_encoder(base, tiny_encoder())
    assert (type(pipe), pipe.unet) == (type(base), base.unet)
    inputs = {"num_frames": 2, "height": SIDE, "width": SIDE, "num_inference_steps": 2, "output_type": "pt"}
    frames = pipe(prompt=LONG_PROMPT, generator=torch.Generator().manual_seed(0), **inputs).frames
    assert frames.shape == (1, 2, 3, SIDE, SIDE)


@pytest.mark.parametrize("make", [tiny_sd_pipeline, tiny_sdxl])
def test_an_ip_adapter_that_is_loaded_stays(make):
    base = add_ip_adapter(make())
    pipe = with_text_encoder(base, tiny_encoder())
    with_picture = draw_family(pipe, prompt=LONG_PROMPT, ip_adapter_image=picture())
    pipe.set_ip_adapter_scale(0.0)
    assert not torch.equal(draw_family(pipe, prompt=LONG_PROMPT, ip_adapter_image=picture()), with_picture)


def test_settings_that_no_config_holds_stay():
    base = tiny_sdxl()
    base.watermark = "a watermark of the user's"
    assert with_text_encoder(base, tiny_encoder()).watermark == "a watermark of the user's"
    assert isinstance(base, StableDiffusionXLPipeline)
