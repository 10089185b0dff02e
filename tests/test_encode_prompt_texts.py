"""Real long texts through real pipelines: every token reaches every encoder, and no tokenizer complains."""

import json
from pathlib import Path

import pytest
import torch
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_sdxl

from debias_sd import count_tokens, encode_prompt, with_text_encoder
from debias_sd.prompts.windows import split_prompt

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
FILES = ("dpg_prompts.jsonl", "iiw400_captions.jsonl", "longbench_t2i_prompts.jsonl")
MADE = [
    LONG_PROMPT * 5,
    "cyberpunk,sci-fi,dark-fantasy,portrait 400,8k,soft light," * 30,
    "Dr. A. Smith, 3.5 m tall, waves — “yes”… 日本語。Ça va? <b>&amp;</b>\n\nÉté\t1234567890 " * 20,
    "A" * 300,
    "👩🏽‍🚀🏳️‍🌈 " * 80,
    "(" * 1000 + "cat",
    "a <|endoftext|> cat <|startoftext|> " * 60,
    "",
]


@pytest.fixture(scope="module", params=[tiny_sd_pipeline, tiny_sdxl])
def pipe(request):
    return with_text_encoder(request.param(), tiny_encoder())


def encoders(pipe):
    parts = pipe.components
    return [
        (parts[name], parts[name.replace("text_encoder", "tokenizer")])
        for name in ("text_encoder", "text_encoder_2")
        if parts.get(name) is not None
    ]


def rows_read(pipe, text, **options):
    """Encode `text`, and return for each encoder the different rows of ids that it was given."""
    found, handles = [], []
    for encoder, _ in encoders(pipe):
        rows = set()
        handles.append(
            encoder.register_forward_pre_hook(lambda _, args, rows=rows: rows.update(map(tuple, args[0].tolist())))
        )
        found.append(rows)
    result = encode_prompt(pipe, text, "", **options)
    for handle in handles:
        handle.remove()
    assert all(tensor.isfinite().all() for tensor in result.values())
    return found, result["prompt_embeds"].shape[1]


def assert_nothing_is_lost(pipe, text, **options):
    """The windows, joined, are the whole text; and they, and the empty negative prompt, are what the encoder reads."""
    found, tokens = rows_read(pipe, text, **options)
    tokenizers = [tokenizer for _, tokenizer in encoders(pipe)]
    window = len(next(iter(found[0])))
    windows = split_prompt(tokenizers, text, window=window)
    assert tokens == window * len(windows)
    for place, (tokenizer, rows) in enumerate(zip(tokenizers, found, strict=True)):
        contents = [one[place].ids for one in windows]
        whole = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False).input_ids
        assert [one for ids in contents for one in ids] == whole
        rows_wanted = [(tokenizer.bos_token_id, *ids, tokenizer.eos_token_id) for ids in [*contents, ()]]
        assert rows == {(*row, *[tokenizer.pad_token_id] * (window - len(row))) for row in rows_wanted}


@pytest.mark.parametrize("window", [None, 77, "auto"])
@pytest.mark.parametrize("number", range(len(MADE)))
def test_no_token_of_an_odd_text_is_lost(pipe, number, window, caplog):
    assert_nothing_is_lost(pipe, MADE[number], window=window)
    assert not caplog.text


def real_texts():
    if not DATA.is_dir():
        pytest.skip(f"real texts are not at {DATA}")
    lines = [line for name in FILES for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
    texts = [json.loads(line) for line in lines]
    return [text.get("prompt") or text["caption"] for text in texts]


def test_no_token_of_some_real_texts_is_lost(pipe, caplog):
    for text in real_texts()[::40]:
        assert_nothing_is_lost(pipe, text)
    assert not caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("window", [None, 77])
def test_no_token_of_any_real_text_is_lost(pipe, window, caplog):
    texts = real_texts()
    assert len(texts) > 800
    for text in texts:
        assert_nothing_is_lost(pipe, text, window=window)
    assert not caplog.text


@pytest.mark.parametrize(
    "argument", ["clip_skip", "negative_clip_skip", "window", "num_images_per_prompt", "lora_scale", "min_positions"]
)
@pytest.mark.parametrize("value", [True, False])
def test_a_boolean_is_no_number(argument, value):
    """Case 125: `clip_skip=True` was 1."""
    pipe = tiny_sd_pipeline()
    call, given = (with_text_encoder, tiny_encoder()) if argument == "min_positions" else (encode_prompt, "a cat")
    with pytest.raises(ValueError, match=rf"{argument.removeprefix('negative_')}( is)? {value}"):
        call(pipe, given, **{argument: value})


def test_clip_skip_2_of_the_web_ui_is_1_and_a_boolean_is_no_length():
    """Case 125: the last layer is left out, and the documents and the docstring say so."""
    pipe = tiny_sd_pipeline()
    ids = pipe.tokenizer("a cat", padding="max_length", return_tensors="pt")["input_ids"]
    states = pipe.text_encoder(ids, output_hidden_states=True).hidden_states[-2]
    norm = getattr(pipe.text_encoder, "text_model", pipe.text_encoder).final_layer_norm
    assert torch.allclose(encode_prompt(pipe, "a cat", clip_skip=1)["prompt_embeds"], norm(states), atol=1e-5)
    guide = (Path(__file__).parent.parent / "docs" / "prompts.md").read_text(encoding="utf-8")
    assert 'its "clip skip 2" is `clip_skip=1`' in guide
    assert '"clip skip 2" of AUTOMATIC1111 is 1 here' in encode_prompt.__doc__
    with pytest.raises(ValueError, match="length is True"):
        count_tokens(tiny_encoder(), "a cat", lengths=(True,))
    for fault in ({"factor": True}, {"keep": True}):
        with pytest.raises(ValueError, match=f"{next(iter(fault))} is True"):
            tiny_encoder(77).stretch(**fault)
