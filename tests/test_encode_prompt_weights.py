"""`weighting="a1111"` on real pipelines: weights, BREAK and tags; without it a prompt is read as it stands."""

import warnings

import pytest
import torch
from tiny import LONG_PROMPT, tiny_sd_pipeline
from tiny_pipelines import FAMILIES, tiny_flux

from debias_sd import encode_prompt

A1111 = {"weighting": "a1111"}


@pytest.fixture(scope="module")
def pipe():
    """Its states have a mean, as those of real encoders have: random ones are normalised to zero."""
    pipe = tiny_sd_pipeline()
    torch.nn.init.constant_(pipe.text_encoder.final_layer_norm.bias, 0.3)
    return pipe


def states(pipe, prompt, negative="", **options):
    return encode_prompt(pipe, prompt, negative, **options)["prompt_embeds"]


def test_weights_are_those_of_the_web_ui_in_negative_prompts_and_batches_too(pipe):
    plain = states(pipe, "a red cat on a mat")
    found = states(pipe, "a (red cat:1.4) on [a] mat", **A1111)
    factors = torch.ones(77, 1)
    factors[2:4], factors[5] = 1.4, 1 / 1.1  # start token, "a"
    by_hand = plain * factors
    by_hand *= plain.mean() / by_hand.mean()
    torch.testing.assert_close(found, by_hand)
    torch.testing.assert_close(found.mean(), plain.mean())
    found = encode_prompt(pipe, ["a cat", "a (dog:1.3)"], ["(blurry:0.5)", "dark"], **A1111)
    plain = encode_prompt(pipe, ["a cat", "a dog"], ["blurry", "dark"])
    changed = [not torch.equal(found[name][row], plain[name][row]) for name in found for row in (0, 1)]
    assert changed == [False, True, True, False]


def test_a_prompt_without_markup_is_not_changed_and_markup_uses_up_no_tokens(pipe):
    for prompt in ("a cat", LONG_PROMPT, "", "age,fantasy ratio 16:9"):
        both = [encode_prompt(pipe, prompt, "blurry", **options) for options in ({}, A1111)]
        assert all(torch.equal(both[0][name], both[1][name]) for name in both[0])
    tags = ", ".join(f"(tag{number}:{number / 25})" for number in range(1, 31))
    plain = ", ".join(f"tag{number}" for number in range(1, 31))
    assert states(pipe, tags, **A1111).shape == states(pipe, plain).shape
    assert states(pipe, tags).shape[1] > states(pipe, plain).shape[1]
    plain = states(pipe, "A cat. " + "dog " * 70 + ". A red bird.")
    found = states(pipe, "A cat. " + "dog " * 70 + ". A (red:1.5) bird.", **A1111)
    assert torch.equal(found[:, :77], plain[:, :77])
    ratio = found[0, 77:] / plain[0, 77:]
    torch.testing.assert_close(ratio[2] / ratio[1], torch.full_like(ratio[2], 1.5))


def test_break_begins_a_window(pipe):
    red, blue = (states(pipe, text) for text in ("red cat", "blue dog"))
    torch.testing.assert_close(states(pipe, "red cat BREAK blue dog", **A1111), torch.cat([red, blue], dim=1))
    assert states(pipe, "x BREAK BREAK y", **A1111).shape[1] == 2 * 77
    assert states(pipe, "BREAKFAST table", **A1111).shape[1] == 77
    assert states(pipe, "red cat BREAK blue dog").shape[1] == 77
    both = encode_prompt(pipe, "red cat BREAK blue dog", "blurry", **A1111)
    assert both["negative_prompt_embeds"].shape == both["prompt_embeds"].shape


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompt", ["(cat:0)", "(cat:-1)", "(cat:10)", "a (cat:10) (dog:-10) BREAK (((((bird)))))"])
def test_all_is_finite_in_half_precision(half_pipes, family, prompt):
    found = encode_prompt(half_pipes[family], prompt, prompt, **A1111)
    for name, tensor in found.items():
        assert tensor.dtype == torch.float16, name
        assert torch.isfinite(tensor).all(), name
    plain = encode_prompt(half_pipes[family], "cat", "cat")
    if "BREAK" not in prompt:
        assert not torch.equal(found["prompt_embeds"], plain["prompt_embeds"])
    if "pooled_prompt_embeds" in found and "BREAK" not in prompt:
        assert torch.equal(found["pooled_prompt_embeds"], plain["pooled_prompt_embeds"])


@pytest.fixture(scope="module")
def half_pipes():
    return {family: make().to(torch.float16) for family, make in FAMILIES.items()}


def test_t5_is_weighted_too_and_reads_through_breaks():
    pipe = tiny_flux()
    plain, found = states(pipe, "a red boat", None), states(pipe, "a (red:1.5) boat", None, **A1111)
    ids = pipe.tokenizer_2("a red boat").input_ids
    ratio = (found / plain)[0].median(dim=-1).values
    place = ids.index(pipe.tokenizer_2.convert_tokens_to_ids("▁red"))
    torch.testing.assert_close(ratio[place] / ratio[place + 1], torch.tensor(1.5))
    assert torch.equal(states(pipe, "a red boat BREAK", None, **A1111), plain)
    assert states(pipe, "red BREAK boat", None, **A1111).shape == plain.shape


def test_a_tag_for_a_file_is_told(pipe):
    with pytest.warns(UserWarning, match=r"<lora:foo:0\.8> in a prompt loads nothing and is left out") as caught:
        found = states(pipe, "<lora:foo:0.8> cat", **A1111)
    assert caught[0].filename == __file__
    assert torch.equal(found, states(pipe, " cat"))
    with pytest.warns(UserWarning, match=r"<lora:foo:0\.8> in a prompt loads nothing and is read as text"):
        literal = states(pipe, "<lora:foo:0.8> cat")
    assert not torch.equal(literal, found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        states(pipe, "a < b : c > d <b>")
