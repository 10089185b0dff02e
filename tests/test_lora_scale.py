"""The strength of LoRA layers for one call: multiplied, and given back to the last digit."""

import threading
import time

import peft
import pytest
import torch
from tiny import LONG_PROMPT, tiny_sd_pipeline, tiny_text_encoder

from debias_sd import encode_prompt
from debias_sd.prompts.lora_scale import lora_at


@pytest.fixture
def encoder():
    model = tiny_text_encoder(77)
    config = peft.LoraConfig(r=4, lora_alpha=3, target_modules=["q_proj", "fc1"], init_lora_weights=False)
    return peft.inject_adapter_in_model(config, model, "style")


def strengths(model):
    return [part.scaling["style"] for part in model.modules() if isinstance(getattr(part, "scaling", None), dict)]


@pytest.mark.parametrize("scale", [0, 0.1, 1.0, -2])
def test_the_strength_is_multiplied_inside_and_is_what_it_was_behind(encoder, scale):
    before = strengths(encoder)
    assert before == [0.75] * 6
    with lora_at([encoder], scale):
        assert strengths(encoder) == pytest.approx([0.75 * scale] * 6)
    assert strengths(encoder) == before
    with lora_at([encoder], None):
        assert strengths(encoder) == before


def test_it_comes_back_after_a_fault(encoder):
    before = strengths(encoder)
    with pytest.raises(RuntimeError, match="no memory"), lora_at([encoder], 0.3):
        raise RuntimeError("no memory")
    assert strengths(encoder) == before


def test_a_prompt_is_encoded_at_the_scale(encoder):
    base, pipe = tiny_sd_pipeline(seed=0), tiny_sd_pipeline(seed=0)
    pipe.text_encoder = encoder
    base.text_encoder = tiny_text_encoder(77)
    one, none, half, again = (encode_prompt(pipe, LONG_PROMPT, "bad", lora_scale=scale) for scale in (1, 0, 0.5, 1))
    plain = encode_prompt(base, LONG_PROMPT, "bad")
    torch.testing.assert_close({name: none[name] for name in plain}, plain)
    for name in plain:
        assert torch.equal(one[name], again[name])
        assert not torch.allclose(one[name], half[name], atol=1e-2)


@pytest.mark.parametrize("scale", [float("inf"), float("nan"), "1"])
def test_a_scale_that_is_no_number_is_told(encoder, scale):
    with pytest.raises(ValueError, match="but must be a finite number"), lora_at([encoder], scale):
        pass


def test_each_thread_has_its_own_strength_and_none_is_left_behind(encoder):
    """A pause between strength and forward is where another thread would come in."""
    pipe = tiny_sd_pipeline(seed=0)
    pipe.text_encoder = encoder
    before, scales = strengths(encoder), (0.2, None, 1.5, 0)
    wanted = [encode_prompt(pipe, LONG_PROMPT, lora_scale=scale)["prompt_embeds"] for scale in scales]
    found = {}

    def pause(*_):
        time.sleep(0.02)

    encoder.register_forward_pre_hook(pause)

    def encode(scale):
        found[scale] = [encode_prompt(pipe, LONG_PROMPT, lora_scale=scale)["prompt_embeds"] for _ in range(3)]

    threads = [threading.Thread(target=encode, args=(scale,)) for scale in scales]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, want) for scale, want in zip(scales, wanted, strict=True) for one in found[scale])
    assert strengths(encoder) == before
