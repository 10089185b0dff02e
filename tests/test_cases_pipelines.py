"""Cases from people who run pipelines (`test_cases.py`): adapters, memory, threads, copies, what is installed."""

import copy
import gc
import pickle
import subprocess
import sys
import threading
import tracemalloc

import peft
import pytest
import torch
from diffusers import (
    AutoPipelineForImage2Image,
    ControlNetModel,
    DiffusionPipeline,
    StableDiffusionXLControlNetPipeline,
)
from tiny import LONG_PROMPT, draw, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import SIDE, add_ip_adapter, draw_family, picture, tiny_flux, tiny_sd3, tiny_sdxl

from debias_sd import describe_encoders, encode_prompt, load_debias_pipeline, with_text_encoder

# Every module, in a process where nothing that old tools need at run time can be imported.
WITHOUT = """
import importlib, pkgutil, sys
for name in ("pkg_resources", "setuptools", "distutils", "clip", "ftfy"):
    sys.modules[name] = None
import debias_sd
names = [one.name for one in pkgutil.walk_packages(debias_sd.__path__, "debias_sd.")]
for name in names:
    name.endswith("__main__") or importlib.import_module(name)
print(len(names))
"""


def test_nothing_needs_setuptools_or_openais_package():
    """Case 40."""
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def sdxl_with_controlnet():
    base = tiny_sdxl()
    torch.manual_seed(8)
    controlnet = ControlNetModel.from_unet(base.unet, conditioning_embedding_out_channels=(2, 4)).eval()
    for parameter in controlnet.parameters():  # its last layers start at zero, where it changes nothing
        torch.nn.init.normal_(parameter, std=0.1)
    pipe = StableDiffusionXLControlNetPipeline(**base.components, controlnet=controlnet, add_watermarker=False)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_sdxl_with_controlnet_draws_the_150th_word():
    """Case 37."""
    pipe = with_text_encoder(sdxl_with_controlnet(), tiny_encoder())
    words = ["cat"] * 200
    texts = [" ".join([*words[:149], word, *words[150:]]) for word in ("dog", "owl")]
    inputs = {"image": picture(), "height": SIDE, "width": SIDE}
    first, second = (draw(pipe, prompt=text, **inputs) for text in texts)
    assert not torch.equal(first, second)
    assert torch.equal(draw(pipe, **encode_prompt(pipe, texts[0]), **inputs), first)
    assert draw(pipe, **encode_prompt(pipe, texts[0] * 2, "blurry"), **inputs).isfinite().all()


@pytest.mark.parametrize("make", [tiny_sd_pipeline, tiny_sdxl, tiny_sd3, tiny_flux])
def test_the_picture_follows_the_scale_at_once(make, monkeypatch):
    """Case 44: scale 1, 0, 1, 1 gives pictures 1, 3 and 4 alike, of LoRA in encoder and denoiser."""
    # transformers 5.24 asks for a peft that is not out; what it calls is there in the newest one.
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", peft.__version__)
    pipe = with_text_encoder(make(), tiny_encoder())
    plain = draw_family(pipe, **encode_prompt(pipe, LONG_PROMPT * 2))
    torch.manual_seed(0)
    pipe.text_encoder.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), "style")
    denoiser = pipe.unet if hasattr(pipe, "unet") else pipe.transformer
    denoiser.add_adapter(peft.LoraConfig(r=4, target_modules=["to_q", "to_v"], init_lora_weights=False), "style")
    found = [encode_prompt(pipe, LONG_PROMPT * 2, lora_scale=scale) for scale in (1, 0, 1, 1)]
    pictures = [draw_family(pipe, **one) for one in found]
    assert torch.equal(pictures[0], pictures[2])
    assert torch.equal(pictures[0], pictures[3])
    assert not torch.allclose(pictures[0], pictures[1], atol=1e-3)
    torch.testing.assert_close(pictures[1], plain, rtol=0, atol=1e-5)  # the denoiser is at 0 too
    name = "cross_attention_kwargs" if hasattr(pipe, "unet") else "joint_attention_kwargs"
    assert [one[name] for one in found] == [{"scale": scale} for scale in (1, 0, 1, 1)]
    with pytest.raises(TypeError, match=f"multiple values for keyword argument '{name}'"):
        pipe(**found[0], **{name: {"scale": 0.5}})  # states of one scale, a call at another


def test_twenty_encodes_leave_memory_flat():
    """Case 55."""
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    encode_prompt(pipe, LONG_PROMPT * 2, "blurry")
    gc.collect()
    tracemalloc.start()
    before, tensors = tracemalloc.get_traced_memory()[0], count_tensors()
    for number in range(20):
        found = encode_prompt(pipe, f"{LONG_PROMPT * 2} {number}", "blurry")
        assert not any(tensor.requires_grad for tensor in found.values())
    del found
    gc.collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert count_tensors() <= tensors
    assert after - before < 200_000


def count_tensors():
    return sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())


def test_sdxl_with_an_ip_adapter_reads_two_windows():
    """Case 56: the picture's tokens are not looked for behind a fixed 77."""
    pipe = with_text_encoder(add_ip_adapter(tiny_sdxl()), tiny_encoder())
    found = encode_prompt(pipe, LONG_PROMPT * 2, "blurry")
    assert found["prompt_embeds"].shape[1] == 496
    first = draw_family(pipe, **found, ip_adapter_image=picture())
    pipe.set_ip_adapter_scale(0.0)
    assert not torch.equal(draw_family(pipe, **found, ip_adapter_image=picture()), first)


def test_twenty_prompts_without_weights_are_the_pipelines_own():
    """Case 57."""
    pipe = with_text_encoder(tiny_sdxl(), tiny_encoder())
    sentences = LONG_PROMPT.split(". ")
    prompts = [". ".join(sentences[start : start + size]) for start in range(5) for size in (1, 2, 3, 5)]
    assert len(set(prompts)) == 20
    for prompt in prompts:
        found = encode_prompt(pipe, prompt, "blurry")
        with torch.no_grad():
            own = pipe.encode_prompt(prompt, device="cpu", negative_prompt="blurry")
        names = ("prompt_embeds", "negative_prompt_embeds", "pooled_prompt_embeds", "negative_pooled_prompt_embeds")
        assert all(torch.equal(found[name], tensor) for name, tensor in zip(names, own, strict=True))


@pytest.mark.usefixtures("one_thread")  # of torch: sums are shared out otherwise in a thread of its own
def test_two_pipelines_of_one_base_run_at_once():
    """Case 72: A and B share weights, and no scheduler and no tokenizer."""
    base = tiny_sd_pipeline()
    pipes = [with_text_encoder(base, tiny_encoder(seed=seed)) for seed in (0, 1)]

    def one(pipe):
        return draw(pipe, **encode_prompt(pipe, LONG_PROMPT * 2, "blurry"))

    expected = [one(pipe) for pipe in pipes]
    found = [[], []]
    threads = [
        threading.Thread(target=lambda place, pipe: found[place].append(one(pipe)), args=(place, pipe))
        for place, pipe in enumerate(pipes)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(pictures) for pictures in found] == [1, 1]
    assert all(torch.equal(found[place][0], expected[place]) for place in (0, 1))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda pipe: pickle.loads(pickle.dumps(pipe))], ids=["copy", "pickle"])
def test_a_copy_is_a_pipeline_of_its_own(way):
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    other = way(pipe)
    other.set_progress_bar_config(disable=True)
    expected = [draw(pipe, prompt=LONG_PROMPT, clip_skip=skip) for skip in (None, 1)]
    torch.nn.init.zeros_(pipe.text_encoder.final_layer_norm.weight)
    assert all(torch.equal(draw(other, prompt=LONG_PROMPT, clip_skip=skip), expected[bool(skip)]) for skip in (None, 1))


@pytest.mark.parametrize("make", [tiny_sdxl, tiny_sd3, tiny_flux])
def test_from_pipe_keeps_what_was_swapped(make):
    pipe = with_text_encoder(make(), tiny_encoder())
    other = AutoPipelineForImage2Image.from_pipe(pipe)
    other.set_progress_bar_config(disable=True)
    assert describe_encoders(other) == describe_encoders(pipe)
    inputs = {"image": picture(), "strength": 1.0} | ({} if make is tiny_sdxl else {"height": SIDE, "width": SIDE})
    for given in ({"prompt": LONG_PROMPT}, encode_prompt(other, LONG_PROMPT * 2)):
        assert draw(other, **given, **inputs).isfinite().all()


def test_a_variant_is_saved_and_read_again(tmp_path):
    pipe = with_text_encoder(tiny_sdxl().to(torch.float16), tiny_encoder())
    pipe.save_pretrained(tmp_path, variant="fp16")
    for again in (
        DiffusionPipeline.from_pretrained(tmp_path, variant="fp16", dtype=torch.float16),
        load_debias_pipeline(tmp_path, "base", variant="fp16", torch_dtype=torch.float16),
    ):
        assert describe_encoders(again) == describe_encoders(pipe)
        found, expected = (encode_prompt(one, LONG_PROMPT * 2, "blurry") for one in (again, pipe))
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_list_of_generators_a_callback_and_latents():
    pipe = with_text_encoder(tiny_sdxl(), tiny_encoder())
    seen = []

    def note(_pipe, _step, _time, tensors):
        seen.append({name: tuple(tensor.shape) for name, tensor in tensors.items()})
        return tensors

    generators = [torch.Generator().manual_seed(seed) for seed in range(4)]
    arguments = {"height": SIDE, "width": SIDE, "num_inference_steps": 2, "output_type": "latent"}
    latents = pipe(
        **encode_prompt(pipe, ["a cat", LONG_PROMPT * 2], "blurry"), **arguments, generator=generators,
        num_images_per_prompt=2, callback_on_step_end=note, callback_on_step_end_tensor_inputs=["prompt_embeds"],
    ).images  # fmt: skip
    assert (tuple(latents.shape), seen) == ((4, 4, SIDE // 2, SIDE // 2), [{"prompt_embeds": (8, 496, 80)}] * 2)
    generators = [torch.Generator().manual_seed(seed) for seed in range(4)]
    repeated = encode_prompt(pipe, ["a cat", LONG_PROMPT * 2], "blurry", num_images_per_prompt=2)
    assert torch.equal(pipe(**repeated, **arguments, generator=generators).images, latents)
