"""What is read of a prompt and what is lost: by tokenizer, encoder and pipeline, per window and per word."""

import time

import pytest
import torch
from tiny import LONG_PROMPT, clip_tokenizer, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_flux, tiny_sd3, tiny_sdxl
from transformers import PreTrainedTokenizerBase

from debias_sd import count_tokens
from debias_sd.encoder import TextEncoder
from debias_sd.prompts.token_report import T5_LENGTHS
from debias_sd.tokens import end_positions, tokenize

EOT = 49407
PORTRAIT = (
    "Portrait of a cyborg woman, intricate, elegant, highly detailed, digital painting, artstation, concept art, "
    "smooth, sharp focus, illustration, art by Artgerm and Greg Rutkowski and Alphonse Mucha and Wlop and Zdzisław "
    "Beksiński, cinematic lighting, unreal engine 5, 8k, HDRI, volumetric, by Tsutomu Nihei and H.R. Giger, "
    "trending on deviantart, chiaroscuro"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return clip_tokenizer(model_max_length=77)


def test_report_of_a_short_prompt_and_of_a_sign_of_several_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    report = count_tokens(tokenizer, "a photo of a cat")
    assert report.tokens == 5
    assert report.unknown_words == ()
    assert list(report.readings) == [77, 248]
    assert report.readings[77].kept == "a photo of a cat"
    assert report.readings[77].lost == ""
    (word,) = count_tokens(tokenizer, " 猫 ").words
    assert (word.text, word.parts) == ("猫", ("猫", "", ""))


@pytest.mark.parametrize("length", [77, 248])
@pytest.mark.parametrize(
    "piece", ["A Red, cube! ", "naïve Ünïcode e\u0301 ", "🎉🎂 party ", "红色的猫 ", "<|endoftext|> x "]
)
def test_kept_text_is_what_the_encoder_reads(tokenizer: PreTrainedTokenizerBase, length: int, piece: str) -> None:
    """The kept text alone has the very tokens that the encoder sees of the whole prompt."""
    prompt = piece * 200
    reading = count_tokens(tokenizer, prompt, lengths=(length,)).readings[length]
    assert reading.kept + reading.lost == prompt
    assert reading.lost
    whole = tokenize(tokenizer, [prompt], length=length, pad_id=0)[0]
    alone = tokenize(tokenizer, [reading.kept], length=length, pad_id=0)[0]
    cut = int(end_positions(alone[None], end_id=EOT)[0])
    # A character of several byte tokens may be cut apart, and then counts as lost.
    assert cut >= length - 4
    assert torch.equal(alone[: cut - 1], whole[: cut - 1])


def test_ten_thousand_words_without_a_warning_and_quickly(
    tokenizer: PreTrainedTokenizerBase, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    report = count_tokens(tokenizer, "word " * 10_000)
    assert report.tokens == 10_000
    assert report.readings[248].lost_tokens == 10_000 - 246
    assert caplog.records == []
    assert capfd.readouterr().err == ""
    start = time.process_time()
    report = count_tokens(tokenizer, "a big red cat sits. " * 3000 + "A" * 20_000, known_words={"a"})
    assert report.tokens > 20_000
    assert time.process_time() - start < 4


def test_an_empty_prompt_has_a_report_and_what_is_no_text_or_has_no_room_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    report = count_tokens(tokenizer, "")
    assert report.tokens == 0
    assert (report.readings[77].kept, report.readings[77].lost) == ("", "")
    with pytest.raises(ValueError, match="length is 2, it must be a whole number from 3"):
        count_tokens(tokenizer, "a", lengths=(2,))
    with pytest.raises(ValueError, match="^the prompt is of type int, expected is text; give a str.$"):
        count_tokens(tokenizer, 5)
    with pytest.raises(ValueError, match="not valid text"):
        count_tokens(tokenizer, "a \udc80")


def test_report_cuts_where_the_tokenizer_cuts_and_encode_prompt_reads(tokenizer: PreTrainedTokenizerBase) -> None:
    readings = count_tokens(tokenizer, LONG_PROMPT).readings
    assert "".join(window.text for window in readings[77].windows) == LONG_PROMPT
    assert [window.text.rstrip()[-1] for window in readings[77].windows] == ["."] * len(readings[77].windows)
    assert sum(window.tokens for window in readings[77].windows) == 128
    assert [(window.tokens, window.text) for window in readings[248].windows] == [(128, LONG_PROMPT)]
    # 202 tokens: 75 are read at 77 positions, all at 248.
    prompt = "A cat " * 101
    report = count_tokens(tokenizer, prompt)
    assert report.tokens == 202
    assert (report.readings[77].kept_tokens, report.readings[77].lost_tokens) == (75, 127)
    assert report.readings[77].kept == "A cat " * 37 + "A "
    assert report.readings[77].lost == prompt[len("A cat " * 37 + "A ") :]
    assert report.readings[248].lost == ""


def test_the_words_of_a_short_prompt_that_is_long_in_tokens(tokenizer: PreTrainedTokenizerBase) -> None:
    """Case 18: names cost several tokens each; the breakdown says which, and adds up."""
    report = count_tokens(tokenizer, PORTRAIT)
    assert report.tokens == 95
    assert sum(len(word.parts) for word in report.words) == report.tokens
    assert " ".join(word.text for word in report.words) == PORTRAIT
    assert all("".join(word.parts) == word.text for word in report.words)
    words = {word.text: word.parts for word in report.words}
    assert words["Rutkowski"] == ("Rut", "kowski")
    assert words["Portrait"] == ("Portrait",)
    assert words["woman,"] == ("woman", ",")
    assert words["Beksiński,"] == ("Bek", "si", "ń", "", "ski", ",")


def test_markup_costs_no_tokens_where_it_is_read(tokenizer: PreTrainedTokenizerBase) -> None:
    prompt = "a (red:1.3) cat BREAK <lora:x:1> a [dog]"
    plain, read = count_tokens(tokenizer, prompt), count_tokens(tokenizer, prompt, weighting="a1111")
    assert (read.tokens, read.tags) == (5, ("<lora:x:1>",))
    assert (plain.tags, plain.tokens > 15) == ((), True)
    assert [window.text.strip() for window in read.readings[248].windows] == ["a red cat", "a dog"]
    assert [(word.text, round(word.weight, 2)) for word in read.words] == [
        ("a", 1), ("red", 1.3), ("cat", 1), ("a", 1), ("dog", 0.91)
    ]  # fmt: skip
    assert " ".join(read.readings[77].kept.split()) == "a red cat a dog"
    assert (
        count_tokens(tokenizer, "cat " * 70 + "BREAK " + "dog " * 70, weighting="a1111").readings[77].lost_tokens == 65
    )


@pytest.mark.parametrize(
    ("pipe", "lengths"),
    [
        (tiny_sd_pipeline, {"text_encoder": (77, 248)}),
        (tiny_sdxl, {"text_encoder": (77, 248), "text_encoder_2": (77, 248)}),
        (tiny_sd3, {"text_encoder": (77, 248), "text_encoder_2": (77, 248), "text_encoder_3": T5_LENGTHS}),
        (tiny_flux, {"text_encoder": (77, 248), "text_encoder_2": T5_LENGTHS}),
    ],
)
def test_a_pipeline_has_a_report_for_each_encoder(pipe, lengths) -> None:
    pipe = pipe()
    reports = count_tokens(pipe, LONG_PROMPT)
    assert {name: tuple(report.readings) for name, report in reports.items()} == lengths
    for slot, report in reports.items():
        ids = getattr(pipe, slot.replace("text_encoder", "tokenizer"))(LONG_PROMPT, verbose=False).input_ids
        t5 = report.readings.get(T5_LENGTHS[0])
        assert report.tokens == len(ids) - (1 if t5 else 2)
        assert t5 is None or (t5.kept_tokens, t5.windows) == (min(report.tokens, 255), ())


def test_a_learnt_token_counts_as_in_the_pipeline_and_an_encoder_brings_its_known_words() -> None:
    pipe = tiny_sd_pipeline()
    pipe.load_textual_inversion({"<toy>": torch.ones(3, 32)}, token="<toy>")
    report = count_tokens(pipe, "a <toy>")["text_encoder"]
    assert report.tokens == 4
    assert [word.parts for word in report.words] == [("a",), ("<toy>", "", "")]
    encoder = tiny_encoder()
    small = TextEncoder(encoder.model, encoder.tokenizer, known_words=frozenset({"a", "cat"}))
    assert count_tokens(encoder, "a red cat").unknown_words == ()
    assert count_tokens(small, "a red cat").unknown_words == ("red",)
    assert count_tokens(small, "a red cat", known_words={"red"}).unknown_words == ("a", "cat")
