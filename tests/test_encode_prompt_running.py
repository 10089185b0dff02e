"""`encode_prompt` as pipelines are run: offloaded, compiled, in half precision, with other schedulers and compel."""

import gc
import shutil
import tracemalloc

import pytest
import torch
from accelerate.hooks import attach_align_device_hook
from diffusers import DPMSolverMultistepScheduler, PNDMScheduler, UniPCMultistepScheduler
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import (
    FAMILIES,
    add_ip_adapter,
    draw_family,
    picture,
    tiny_animatediff,
    tiny_controlnet_pipeline,
    tiny_sdxl,
)

from debias_sd import encode_prompt, with_text_encoder
from debias_sd.pipelines.families import family_of

SHORT = "a red cat"
PROMPTS = [SHORT, LONG_PROMPT, LONG_PROMPT * 3]


def offload_by_layers(pipe):
    """What `enable_sequential_cpu_offload` does to the encoders; that itself trips over a CPU as the other device."""
    encoders = [getattr(pipe, slot.encoder) for slot in family_of(pipe.components, "pipe").slots]
    for encoder in encoders:
        weights = dict(encoder.state_dict())
        attach_align_device_hook(encoder, execution_device=torch.device("cpu"), offload=True, weights_map=weights)
    return encoders


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["models", "layers"])
@pytest.mark.parametrize("window", [None, "sentence"])
def test_offloaded_encoders_are_called_through_their_hooks(family, way, window):
    pipe = FAMILIES[family]()
    options = {"clip_skip": None if family == "flux" else 1, "window": window}
    wanted = encode_prompt(pipe, LONG_PROMPT, "blurry", **options)
    if way == "models":
        pipe.enable_model_cpu_offload(device="cpu")
    encoders = offload_by_layers(pipe) if way == "layers" else []
    for _ in range(2):
        found = encode_prompt(pipe, LONG_PROMPT, "blurry", **options)
        torch.testing.assert_close(found, wanted)
        assert {one.device.type for encoder in encoders for one in encoder.parameters()} <= {"meta"}
    if way == "models":
        assert draw_family(pipe, **found).isfinite().all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", ["enable_model_cpu_offload", "enable_sequential_cpu_offload"])
def test_offloaded_from_a_gpu(family, way):
    pipe = FAMILIES[family]()
    wanted = encode_prompt(pipe, LONG_PROMPT, "blurry")
    getattr(pipe, way)()
    found = encode_prompt(pipe, LONG_PROMPT, "blurry")
    assert {tensor.device.type for tensor in found.values()} == {"cuda"}
    torch.testing.assert_close({name: one.cpu() for name, one in found.items()}, wanted, rtol=1e-3, atol=1e-3)
    assert draw_family(pipe, **found).isfinite().all()


@pytest.mark.filterwarnings("ignore:`upcast_vae`")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_half_precision(family, dtype):
    pipe = FAMILIES[family]().to(dtype)
    for prompt in PROMPTS:
        found = encode_prompt(pipe, prompt, "blurry")
        assert {tensor.dtype for tensor in found.values()} == {dtype}
        assert all(torch.isfinite(tensor).all() for tensor in found.values())
    assert draw_family(pipe, **found).isfinite().all()


def test_a_compiled_encoder():
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    wanted = encode_prompt(pipe, LONG_PROMPT, "blurry", clip_skip=1)
    pipe.text_encoder = torch.compile(pipe.text_encoder, backend="eager")
    torch.testing.assert_close(encode_prompt(pipe, LONG_PROMPT, "blurry", clip_skip=1), wanted)


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++", "cl"))), reason="inductor needs a C++ compiler")
def test_a_compiled_encoder_and_denoiser():
    """With torch's default backend, for prompts of one window and of two."""
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    prompts = (SHORT, LONG_PROMPT * 2)
    wanted = [encode_prompt(pipe, prompt, "blurry", clip_skip=1) for prompt in prompts]
    pictures = [draw_family(pipe, **one) for one in wanted]
    stock = draw_family(pipe, prompt=LONG_PROMPT, clip_skip=1)
    pipe.text_encoder, pipe.unet = torch.compile(pipe.text_encoder), torch.compile(pipe.unet)
    for prompt, states, drawn in zip(prompts, wanted, pictures, strict=True):
        found = encode_prompt(pipe, prompt, "blurry", clip_skip=1)
        torch.testing.assert_close(found, states, rtol=0, atol=1e-4)
        torch.testing.assert_close(draw_family(pipe, **found), drawn, rtol=0, atol=1e-4)
    torch.testing.assert_close(draw_family(pipe, prompt=LONG_PROMPT, clip_skip=1), stock, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:__array__ implementation")
@pytest.mark.parametrize(
    ("kind", "options"),
    [(DPMSolverMultistepScheduler, {}), (PNDMScheduler, {"skip_prk_steps": True}), (UniPCMultistepScheduler, {})],
)
def test_other_schedulers_and_a_callback(kind, options):
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    pipe.scheduler = kind.from_config(pipe.scheduler.config, **options)
    seen = []

    def note(_, step, timestep, tensors):
        seen.append((step, tuple(tensors["prompt_embeds"].shape)))
        return tensors

    found = encode_prompt(pipe, LONG_PROMPT * 2, "blurry")
    pictures = draw_family(
        pipe, **found, callback_on_step_end=note, callback_on_step_end_tensor_inputs=["latents", "prompt_embeds"]
    )
    assert pictures.isfinite().all()
    assert seen[0] == (0, (2, 496, 32))


@pytest.mark.parametrize("tokens", [248, 496])
def test_ip_adapter_controlnet_and_animatediff(tokens):
    prompt = LONG_PROMPT * (tokens // 248)
    adapted = with_text_encoder(add_ip_adapter(tiny_sd_pipeline()), tiny_encoder())
    controlled = with_text_encoder(tiny_controlnet_pipeline(), tiny_encoder())
    moving = with_text_encoder(tiny_animatediff(), tiny_encoder())
    for pipe, inputs in (
        (adapted, {"ip_adapter_image": picture()}),
        (controlled, {"image": picture()}),
        (moving, {"num_frames": 2}),
    ):
        found = encode_prompt(pipe, prompt, "blurry")
        assert found["prompt_embeds"].shape == (1, tokens, 32)
        arguments = {"num_inference_steps": 1, "output_type": "pt", "height": 32, "width": 32} | inputs
        one, other = (
            pipe(**embeds, **arguments, generator=torch.Generator().manual_seed(0))[0]
            for embeds in (found, encode_prompt(pipe, prompt + " A bird.", "blurry"))
        )
        assert one.isfinite().all()
        if tokens == 496:
            assert not torch.equal(one, other)


def test_compel_reads_248_tokens_a_window():
    compel = pytest.importorskip("compel", reason="compel is not installed (pip install compel)")
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    reader = compel.Compel(tokenizer=pipe.tokenizer, text_encoder=pipe.text_encoder, truncate_long_prompts=False)
    for prompt, tokens in ((SHORT, 248), (LONG_PROMPT, 248), (LONG_PROMPT * 3, 496)):
        states = reader(prompt)
        assert states.shape == (1, tokens, 32)
        if tokens == 248:
            assert torch.equal(states, encode_prompt(pipe, prompt)["prompt_embeds"])
    states, negative = reader.pad_conditioning_tensors_to_same_length([reader(LONG_PROMPT * 3), reader("")])
    assert draw_family(pipe, prompt_embeds=states, negative_prompt_embeds=negative).isfinite().all()


@pytest.mark.slow
def test_compel_reads_both_encoders_of_sdxl():
    compel = pytest.importorskip("compel", reason="compel is not installed (pip install compel)")
    pipe = with_text_encoder(tiny_sdxl(), tiny_encoder())
    reader = compel.CompelForSDXL(pipe)
    for prompt, tokens in ((LONG_PROMPT, 248), (LONG_PROMPT * 3, 496)):
        read = reader(prompt, negative_prompt="blurry")
        found = {
            "prompt_embeds": read.embeds, "negative_prompt_embeds": read.negative_embeds,
            "pooled_prompt_embeds": read.pooled_embeds, "negative_pooled_prompt_embeds": read.negative_pooled_embeds,
        }  # fmt: skip
        assert found["prompt_embeds"].shape == found["negative_prompt_embeds"].shape == (1, tokens, 80)
        if tokens == 248:
            own = encode_prompt(pipe, prompt, "blurry")
            assert all(torch.equal(found[name], own[name]) for name in own)
    assert draw_family(pipe, **found).isfinite().all()


@pytest.mark.slow
def test_a_thousand_encodes_leave_memory_flat():
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    for number in range(20):
        encode_prompt(pipe, f"{LONG_PROMPT} {number}", "blurry")
    gc.collect()
    tracemalloc.start()
    before, tensors = tracemalloc.get_traced_memory()[0], count_tensors()
    for number in range(1000):
        found = encode_prompt(pipe, f"{LONG_PROMPT * (number % 3)} {number}", "blurry")
        assert not found["prompt_embeds"].requires_grad
    del found
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert count_tensors() <= tensors
    assert after - before < 1_000_000


def count_tensors():
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
