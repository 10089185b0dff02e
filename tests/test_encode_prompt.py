"""Prompts of any length: equal to the pipeline's own encoding where that can do it, windows joined where it cannot."""

import warnings

import pytest
import torch
from tiny import LONG_PROMPT, draw, tiny_encoder, tiny_sd_pipeline

from debias_sd.pipelines.load import with_text_encoder
from debias_sd.prompts.conditioning import encode_prompt

SHORT = "a red cat"


@pytest.fixture(scope="module")
def base():
    return tiny_sd_pipeline()


@pytest.fixture(scope="module")
def pipe(base):
    return with_text_encoder(base, tiny_encoder())


def test_windows_are_encoded_by_themselves_and_the_order_of_a_batch_is_kept(base):
    prompt = "A cat runs. " + "dog " * 70 + ". A bird flies."
    embeds = encode_prompt(base, prompt)["prompt_embeds"]
    first, second = (
        base.encode_prompt(text, "cpu", 1, False)[0] for text in ("A cat runs. " + "dog " * 70 + ".", "A bird flies.")
    )
    assert embeds.shape == (1, 154, 32)
    torch.testing.assert_close(embeds, torch.cat([first, second], dim=1))
    both = encode_prompt(base, ["frog", "toad"], ["bird", "fish"])
    for index, (prompt, negative) in enumerate([("frog", "bird"), ("toad", "fish")]):
        alone = encode_prompt(base, prompt, negative)
        for name in both:
            torch.testing.assert_close(both[name][index], alone[name][0])


@pytest.mark.parametrize(
    ("prompt", "negative", "windows"),
    [
        ("a cat", "dark, " * 60, 2),
        ("cat " * 200, None, 3),
        (["cat", "dog " * 100], "bad", 2),
        (["cat", "dog"], ["bad " * 400, ""], 6),
        (["cat " * 80], None, 2),
    ],
)
def test_both_sides_have_one_length(base, prompt, negative, windows):
    result = encode_prompt(base, prompt, negative)
    size = len(prompt) if isinstance(prompt, list) else 1
    assert {name: tuple(embeds.shape) for name, embeds in result.items()} == {
        "prompt_embeds": (size, 77 * windows, 32),
        "negative_prompt_embeds": (size, 77 * windows, 32),
    }
    assert draw(base, **result).shape[0] == size
    assert not result["prompt_embeds"].requires_grad


def test_one_window_equals_the_pipelines_own_encoding_of_77_too(pipe):
    embeds = encode_prompt(pipe, LONG_PROMPT, window=77)["prompt_embeds"]
    assert embeds.shape[1] % 77 == 0
    assert embeds.shape[1] > 77
    for prompt, negative in [(SHORT, ""), (LONG_PROMPT, "blurry"), ("", ""), (["a", LONG_PROMPT], ["frog", "b c"])]:
        ours = encode_prompt(pipe, prompt, negative)
        theirs = pipe.encode_prompt(prompt, "cpu", 1, True, negative)
        assert torch.equal(ours["prompt_embeds"], theirs[0])
        assert torch.equal(ours["negative_prompt_embeds"], theirs[1])
    assert torch.equal(draw(pipe, prompt=SHORT), draw(pipe, **encode_prompt(pipe, SHORT)))


@pytest.mark.parametrize("prompt", ["word " * 10_000, "😀" * 300, "", "日本語。" * 100, "(" * 1000])
def test_any_prompt_gives_a_picture_without_a_warning(base, prompt, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embeddings = encode_prompt(base, prompt)
    assert not caplog.text
    assert torch.isfinite(embeddings["prompt_embeds"]).all()
    if len(prompt) < 5000:
        assert draw(base, **embeddings).shape == (1, 3, 64, 64)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"prompt": SHORT, "window": 248}, "window is 248, this text encoder reads 3 to 77 tokens"),
        ({"prompt": SHORT, "window": 2}, "window is 2,"),
        ({"prompt": ["a", "b"], "negative_prompt": ["c"]}, "2 prompts and 1 text for its negative are given"),
        ({"prompt": []}, "0 prompts"),
        ({"prompt": [1]}, "of type int but must be str"),
        ({"prompt": "a \udc80"}, "not valid text"),
    ],
)
def test_a_prompt_that_cannot_be_encoded_is_told(base, arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        encode_prompt(base, **arguments)


def test_a_learnt_token_with_three_vectors_is_read(base):
    pipe = with_text_encoder(base, tiny_encoder(seed=3))
    pipe.load_textual_inversion({"<toy>": torch.full((3, 32), 0.5)}, token="<toy>")
    prompt = "cat " * 243 + "<toy> dog. A bird."
    embeds = encode_prompt(pipe, prompt)["prompt_embeds"]
    ids = pipe.tokenizer("cat " * 243 + "<toy> <toy>_1 <toy>_2", padding="max_length", return_tensors="pt").input_ids
    assert ids.shape == (1, 248)
    torch.testing.assert_close(embeds[:, :248], pipe.text_encoder(ids)[0].detach())
    short = encode_prompt(pipe, "a <toy>")["prompt_embeds"]
    assert torch.equal(short, pipe.encode_prompt("a <toy>", "cpu", 1, False)[0])
