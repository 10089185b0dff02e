"""Variants of an encoder in a base, and the pictures of prompts in them."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline

from debias_sd.drawing import FEEDS, Variant, draw, variants_of
from debias_sd.pipelines.load import with_text_encoder

OPTIONS = {"steps": 1, "guidance": 3.0}
SHORT = "A small red star."


@pytest.fixture(scope="module")
def base():
    return tiny_sd_pipeline()


def pictures(variant: Variant, *prompts: str, seeds=(5,), **options) -> np.ndarray:
    return draw(variant, prompts, seeds, **OPTIONS | options)


@pytest.mark.parametrize("own", [True, False], ids=["the pipeline's own", "another"])
def test_an_encoder_of_77_tokens_has_a_variant_for_each_way_to_feed_it(base, own):
    found = variants_of(base, "clip-s0", None if own else tiny_encoder(77, seed=3))
    assert [(key, v.name, v.window, v.reading) for key, v in found.items()] == [
        ("cut", "clip-s0", 77, None),
        ("windows", "clip-chunked-s0", 77, {}),
        ("stretched", "clip-stretched-s0", 248, {}),
        ("sentences", "clip-by-sentence-s0", 77, {"window": "sentence"}),
        ("longalign", "clip-longalign-s0", 77, {"window": "longalign"}),
    ]
    assert tuple(found) == tuple(FEEDS)
    assert (found["cut"].pipe is base) == own
    assert base.tokenizer.model_max_length == 77
    assert variants_of(base, "base", None)["windows"].name == "base-chunked"


def test_a_long_encoder_has_one_variant_that_cuts_nothing(base):
    (variant,) = variants_of(base, "debias-l0.1-s0", tiny_encoder()).values()
    assert (variant.name, variant.window, variant.reading) == ("debias-l0.1-s0", 248, {})
    (own,) = variants_of(variant.pipe, "own", None).values()
    assert (own.window, own.reading) == (248, {})
    assert list(variants_of(base, "own", "stretched")) == ["windows"]
    cut = dataclasses.replace(variant, reading=None)
    assert np.array_equal(pictures(variant, LONG_PROMPT), pictures(cut, LONG_PROMPT))
    assert not np.array_equal(pictures(variant, LONG_PROMPT * 3), pictures(cut, LONG_PROMPT * 3))


def test_variants_share_their_noise_and_differ_where_they_read_on(base):
    cut, chunked, stretched, *_ = variants_of(base, "base", None).values()
    assert np.array_equal(pictures(cut, SHORT), pictures(chunked, SHORT))
    assert np.array_equal(pictures(cut, LONG_PROMPT), pictures(cut, LONG_PROMPT))
    assert not np.array_equal(pictures(cut, LONG_PROMPT), pictures(chunked, LONG_PROMPT))
    assert not np.array_equal(pictures(cut, LONG_PROMPT), pictures(stretched, LONG_PROMPT))
    alone, batched = pictures(cut, LONG_PROMPT), pictures(cut, SHORT, LONG_PROMPT, seeds=(4, 5))
    assert np.abs(alone[0].astype(int) - batched[1]).max() <= 1


@pytest.mark.parametrize("feed", ["cut", "windows"])
def test_a_picture_is_that_of_stock_diffusers_with_a_negative_prompt_and_a_size(base, feed):
    variant, steps = variants_of(base, "base", None)[feed], []
    size = {"steps": 2, "width": 24, "height": 24}
    found = pictures(variant, SHORT, negative="A dog.", on_step=lambda done, latents: steps.append(done), **size)
    stock = base(SHORT, negative_prompt="A dog.", generator=torch.Generator().manual_seed(5), num_inference_steps=2,
                 guidance_scale=3.0, output_type="np", width=24, height=24)  # fmt: skip
    assert np.array_equal(found[0], np.rint(255 * stock.images[0]).astype(np.uint8))
    assert found.shape[2] == 24
    assert steps == [1, 2]
    assert not np.array_equal(found, pictures(variant, SHORT, steps=2, width=24, height=24))


@pytest.mark.parametrize("feed", list(FEEDS))
def test_a_picture_of_nan_is_refused_in_every_variant(base, feed):
    broken = with_text_encoder(base, tiny_encoder(77), min_positions=77)
    with torch.no_grad():
        broken.text_encoder.final_layer_norm.weight.fill_(float("nan"))
    with pytest.raises(ValueError, match="a picture of broken.* holds NaN"):
        pictures(variants_of(broken, "broken", None)[feed], SHORT)
