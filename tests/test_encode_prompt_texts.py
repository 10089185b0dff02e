"""Real long texts through real pipelines: every token reaches every encoder, and no tokenizer complains."""

import json
from pathlib import Path

import pytest
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_sdxl

from debias_sd import encode_prompt, with_text_encoder
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
