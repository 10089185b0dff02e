"""Cases from people who use long prompts (`test_cases.py`): lengths, pairs of prompts, what is typed in a prompt."""

import inspect

import pytest
import torch
from diffusers import AutoPipelineForImage2Image
from tiny import LONG_PROMPT, clip_tokenizer, draw, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import FAMILIES, draw_family, picture, tiny_sd3, tiny_sdxl

from debias_sd import count_tokens, encode_prompt, with_text_encoder

# 82 tokens; the last of them are "cartilaginous support".
CAPTION = (
    "A detailed anatomical drawing in brown ink shows the inner ear of a horse from the left side, with "
    "the hammer, the anvil and the stirrup in their natural order, the spiral of the cochlea cut open like a snail "
    "shell, the three half round canals above it in blue, fine numbers beside every part, and below, in red "
    "chalk, the small ring of its cartilaginous support"
)
WAFFLE = 5 * "A strange creature that is half waffle and half hippo stands in a swamp of butter. "


@pytest.fixture(scope="module")
def base():
    return tiny_sd_pipeline()


@pytest.fixture(scope="module")
def pipe(base):
    return with_text_encoder(base, tiny_encoder())


def states(pipe, prompt):
    return pipe.encode_prompt(prompt, "cpu", 1, False)[0]


def test_a_pipeline_of_77_cuts_and_one_of_248_keeps_all(base, pipe):
    """Case 1."""
    prompt, other = "a cat " * 101, "a cat " * 100 + "a dog"
    report = count_tokens(pipe, prompt)["text_encoder"]
    assert (report.tokens, report.readings[77].lost_tokens, report.readings[248].lost_tokens) == (202, 127, 0)
    assert torch.equal(states(base, prompt), states(base, other))
    assert not torch.equal(states(pipe, prompt), states(pipe, other))
    for one, tokens in ((base, 3 * 77), (pipe, 248)):
        found = [encode_prompt(one, text)["prompt_embeds"] for text in (prompt, other)]
        assert found[0].shape == (1, tokens, 32)
        assert not torch.equal(*found)


@pytest.mark.parametrize("prompt", [CAPTION, 25 * "a cat playing with a ball in the forest ", WAFFLE])
def test_nobody_complains_of_a_prompt_that_is_read(base, pipe, prompt, caplog, capfd):
    """Cases 2, 3, 16; a stock pipeline does complain, and loses the end."""
    assert pipe.tokenizer(prompt).input_ids[-3:-1] != pipe.tokenizer(prompt[:-8]).input_ids[-3:-1]
    for read in (states, lambda pipe, text: encode_prompt(pipe, text)["prompt_embeds"]):
        assert not torch.equal(read(pipe, prompt), read(pipe, prompt.rsplit(" ", 2)[0]))
    encode_prompt(base, prompt)
    draw(pipe, prompt=prompt)
    assert not [record for record in caplog.records if "token" in record.getMessage()]
    assert "token" not in capfd.readouterr().err
    states(base, prompt)
    assert "truncated" in caplog.text


def test_the_caption_is_the_reported_one():
    report = count_tokens(clip_tokenizer(), CAPTION)
    assert report.tokens == 82
    assert report.readings[77].lost.endswith("cartilaginous support")
    assert report.readings[248].lost == ""


def test_embeddings_mix_with_a_plain_negative_prompt_and_img2img_reads_as_far(pipe):
    """Cases 4, 7 and 12: 496 states alone are refused by the pipeline, whose negative prompt is of one window."""
    found = encode_prompt(pipe, LONG_PROMPT * 2)
    assert {tuple(tensor.shape) for tensor in found.values()} == {(1, 496, 32)}
    with pytest.raises(ValueError, match="equence length"):
        draw(pipe, prompt_embeds=found["prompt_embeds"])
    assert draw(pipe, **found).isfinite().all()
    # Of more windows, both texts are for `encode_prompt`.
    embeds = encode_prompt(pipe, LONG_PROMPT)["prompt_embeds"]
    mixed = draw(pipe, prompt_embeds=embeds, negative_prompt="low quality")
    assert torch.equal(mixed, draw(pipe, prompt=LONG_PROMPT, negative_prompt="low quality"))
    assert torch.equal(mixed, draw(pipe, **encode_prompt(pipe, LONG_PROMPT, "low quality")))
    assert draw(pipe, **encode_prompt(pipe, LONG_PROMPT * 2, "low quality")).isfinite().all()
    other = AutoPipelineForImage2Image.from_pipe(pipe)
    other.set_progress_bar_config(disable=True)
    negative = ("bad anatomy, extra fingers, " * 20)[:300]
    found = encode_prompt(other, LONG_PROMPT * 2, negative)
    assert {tensor.shape[1] for tensor in found.values()} == {496}
    start = {"image": picture(), "strength": 1.0}
    assert draw(other, **start, **found).isfinite().all()
    pictures = [draw(other, **start, prompt="a cat", negative_prompt=text) for text in (negative, negative[:-20])]
    assert not torch.equal(*pictures)


@pytest.mark.parametrize("family", FAMILIES)
def test_names_are_those_of_the_call(family):
    """Cases 6 and 8: nothing has to be renamed, and a name that is not known is an error."""
    pipe = FAMILIES[family]()
    found = encode_prompt(pipe, "a cat", "blurry")
    assert found.keys() <= inspect.signature(pipe.__call__).parameters.keys()
    assert ("pooled_prompt_embeds" in found) == (family not in ("sd", "sd2"))
    with pytest.raises(TypeError, match="negative"):
        encode_prompt(pipe, "a cat", negative="blurry")


def test_the_window_is_the_models_and_chinese_is_counted_before_it_is_drawn(base, pipe):
    """Cases 11, 17 and 69: a negative prompt of 90 tags."""
    tags = ", ".join(["dark", "low quality", "bad hands"] * 30)
    for one, tokens in ((base, 4 * 77), (pipe, 248)):
        found = encode_prompt(one, "a cat", tags)
        assert {tensor.shape[1] for tensor in found.values()} == {tokens}
        assert draw(one, **found).isfinite().all()
    assert draw(pipe, prompt="a cat", negative_prompt=tags).isfinite().all()
    # That CLIP knows English best is said in docs/prompts.md.
    report = count_tokens(pipe, "猫" * 60)["text_encoder"]
    assert (report.tokens, report.readings[77].lost_tokens, report.readings[248].lost_tokens) == (180, 105, 0)
    assert report.readings[77].kept == "猫" * 25


@pytest.mark.parametrize("make", [tiny_sd_pipeline, tiny_sdxl, tiny_sd3])
def test_both_prompts_may_be_empty(make):
    """Case 61."""
    pipe = with_text_encoder(make(), tiny_encoder())
    for weighting in (None, "a1111"):
        found = encode_prompt(pipe, "", "", weighting=weighting)
        assert torch.equal(draw_family(pipe, **found), draw_family(pipe, prompt="", negative_prompt=""))


@pytest.mark.parametrize("make", [tiny_sd_pipeline, tiny_sdxl])
def test_a_typed_end_token_does_not_end_the_prompt(make, tmp_path):
    """Case 68: neither in `encode_prompt` nor in the pipeline's own encoding."""
    stock = make()
    pipe = with_text_encoder(stock, tiny_encoder())
    assert pipe.tokenizer("<|endoftext|> cat").input_ids[1] != pipe.tokenizer.eos_token_id
    assert stock.tokenizer("<|endoftext|> cat").input_ids[1] == stock.tokenizer.eos_token_id
    for text in ("<|endoftext|> cat", "a <|startoftext|> dog"):
        with torch.no_grad():
            own = pipe.encode_prompt(
                prompt=text, device="cpu", num_images_per_prompt=1, do_classifier_free_guidance=False
            )
        assert torch.equal(own[0], encode_prompt(pipe, text)["prompt_embeds"])
        if make is tiny_sdxl:
            pooled = [encode_prompt(pipe, one)["pooled_prompt_embeds"] for one in (text, f"{text} bird")]
            assert torch.equal(own[2], pooled[0])
            assert not torch.equal(*pooled)
