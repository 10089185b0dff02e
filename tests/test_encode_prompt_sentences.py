"""`encode_prompt(window="sentence")`: each sentence read alone, joined, and the end of the whole text after them."""

import pytest
import torch
from tiny import LONG_PROMPT
from tiny_pipelines import FAMILIES, draw_family

from debias_sd import encode_prompt, with_text_encoder
from debias_sd.drawing import variants_of
from debias_sd.prompts.batch import PromptBatch, Reader
from debias_sd.prompts.cuts import ALWAYS, BY_SENTENCE, LONGALIGN
from debias_sd.sentences import split_sentences

SENTENCES = split_sentences(LONG_PROMPT)
TAGS = ", ".join(f"tag{number} of a red cat" for number in range(40))
CLOSE = {"atol": 2e-5, "rtol": 1e-4}  # rows without pads are another shape for the same sums


@pytest.fixture(scope="module")
def pipe():
    return FAMILIES["sd"]()


@pytest.fixture(scope="module")
def pipes(pipe):
    return {"sd": pipe} | {name: make() for name, make in FAMILIES.items() if name != "sd"}


def alone(pipe, text):
    """The states of a text of one window as stock diffusers has them, and the number of its tokens."""
    with torch.no_grad():
        states, _ = pipe.encode_prompt(text, "cpu", 1, do_classifier_free_guidance=False)
    return states[0], len(pipe.tokenizer(text, add_special_tokens=False).input_ids)


def first_and_later(pipe, sentences, room=75):
    """The sentences as they are to be read: as many as fit in the first window together, each other one alone."""
    count = 1
    while len(pipe.tokenizer(" ".join(sentences[: count + 1]), add_special_tokens=False).input_ids) <= room:
        count += 1
    return [" ".join(sentences[:count]), *sentences[count:]]


def end_of(pipe, text):
    """The state of the end token of a text that the pipeline's encoder reads whole, stretched if it must be."""
    count = len(pipe.tokenizer(text, add_special_tokens=False).input_ids)
    states, _ = alone(pipe if count <= 75 else with_text_encoder(pipe, "stretched"), text)
    return states[1 + count][None]


def joined(pipe, texts, length):
    """What `window="sentence"` is to give, sentence by sentence from the pipeline itself."""
    read = [alone(pipe, text) for text in texts]
    words = [states[1 : 1 + count] for states, count in read]
    found, end = torch.cat([read[0][0][:1], *words]), end_of(pipe, " ".join(texts))
    return torch.cat([found, end.expand(length - len(found), -1)])


def states_of(pipe, prompt, negative="", **options):
    found = encode_prompt(pipe, prompt, negative, **{"window": "sentence"} | options)
    return found["prompt_embeds"], found["negative_prompt_embeds"]


def test_words_are_those_of_the_parts_that_each_layout_reads(pipe):
    states, negative = states_of(pipe, LONG_PROMPT, "blurry")
    assert states.shape == negative.shape == (1, 154, 32)
    parts = first_and_later(pipe, SENTENCES)
    assert 1 < len(parts) < len(SENTENCES)
    torch.testing.assert_close(states[0], joined(pipe, parts, 154), **CLOSE)
    torch.testing.assert_close(negative, states_of(pipe, LONG_PROMPT, "blurry", window=77)[1][:, :154], **CLOSE)
    states, _ = states_of(pipe, LONG_PROMPT, window=LONGALIGN)
    parts = [states[: 1 + count] for states, count in (alone(pipe, text) for text in SENTENCES)]
    body, filling = torch.cat(parts), alone(pipe, "")[0][-60:].mean(dim=0)
    torch.testing.assert_close(states[0, : len(body)], body, **CLOSE)
    torch.testing.assert_close(states[0, len(body) :], filling.expand(states.shape[1] - len(body), -1), **CLOSE)
    states, _ = states_of(pipe, "a red cat. It sleeps.", window=ALWAYS)
    assert states.shape == (1, 77, 32)
    torch.testing.assert_close(states[0], joined(pipe, ["a red cat.", "It sleeps."], 77), **CLOSE)
    assert not torch.allclose(states, states_of(pipe, "a red cat. It sleeps.")[0], atol=1e-3)


@pytest.mark.parametrize("window", ["sentence", LONGALIGN])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_prompt_that_fits_is_read_as_without(pipes, family, window):
    texts = ["a red cat. It sleeps.", "", "dog"]
    wanted = encode_prompt(pipes[family], texts)
    found = encode_prompt(pipes[family], texts, window=window)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())  # one and the same call


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_the_windows_shapes_and_draws(pipes, family):
    pipe, prompts = pipes[family], [LONG_PROMPT, "a cat."]
    found, chunked = encode_prompt(pipe, prompts, window="sentence"), encode_prompt(pipe, prompts, window=77)
    assert found.keys() == chunked.keys()
    for name, tensor in chunked.items():
        assert found[name].dtype == tensor.dtype
        assert torch.isfinite(found[name]).all()
        if "pooled" in name:  # of the first window, as always
            torch.testing.assert_close(found[name], tensor, **CLOSE)
        else:
            assert found[name].shape[::2] == tensor.shape[::2]
    mean = encode_prompt(pipe, prompts, window="sentence", pooled="mean")
    if "pooled_prompt_embeds" in mean:
        assert not torch.allclose(mean["pooled_prompt_embeds"][0], found["pooled_prompt_embeds"][0], atol=1e-4)
        torch.testing.assert_close(mean["pooled_prompt_embeds"][1], found["pooled_prompt_embeds"][1], **CLOSE)
    assert draw_family(pipe, **encode_prompt(pipe, LONG_PROMPT, window="sentence")).shape[0] == 1


@pytest.mark.parametrize("window", ["sentence", ALWAYS])
def test_two_encoders_are_cut_at_the_same_sentences_at_the_layer_that_the_pipeline_reads(pipes, window):
    pipe = pipes["sdxl"]
    states = encode_prompt(pipe, LONG_PROMPT, window=window)["prompt_embeds"][0]
    place = 1
    for text in SENTENCES if window == ALWAYS else first_and_later(pipe, SENTENCES):
        own = encode_prompt(pipe, text)["prompt_embeds"][0]
        count = len(pipe.tokenizer(text, add_special_tokens=False).input_ids)
        torch.testing.assert_close(states[place : place + count], own[1 : 1 + count], **CLOSE)
        place += count


@pytest.mark.parametrize("text", [TAGS, "a red cat sits on the mat and " * 20], ids=["tags", "one endless sentence"])
def test_without_sentences_it_is_cut_where_windows_are(pipe, text):
    (rows,) = PromptBatch([Reader(pipe.tokenizer, 77)], [[[text]]]).rows(window="sentence")
    (windows,) = PromptBatch([Reader(pipe.tokenizer, 77)], [[[text]]]).rows(window=77)
    assert len(windows.sides[0][0]) > 1
    end = pipe.tokenizer.eos_token_id
    assert [row[:-1] for row in rows.sides[0][0]] == [row[: row.index(end)] for row in windows.sides[0][0]]


def test_a_break_ends_a_sentence_and_a_weight_is_that_of_its_words(pipe):
    marked = LONG_PROMPT.replace("lighthouse", "(lighthouse:1.5) BREAK")
    plain = LONG_PROMPT.replace("lighthouse", "lighthouse BREAK")
    heavy = states_of(pipe, marked, weighting="a1111")[0]
    light = states_of(pipe, plain, weighting="a1111")[0]
    (rows,) = PromptBatch([Reader(pipe.tokenizer, 77)], [[[marked]]], weighting="a1111").rows(window="sentence")
    last = pipe.tokenizer("lighthouse", add_special_tokens=False).input_ids[-1]
    assert sum(row[-2] == last for row in rows.sides[0][0]) == 1
    (places,) = (rows.weights[0][0] != 1).nonzero(as_tuple=True)
    ratio = (heavy / light)[0].median(dim=1).values
    assert all(ratio[place] > 1.2 for place in places)
    others = torch.ones(len(ratio), dtype=torch.bool)
    others[places] = False
    assert (ratio[others] - 1).abs().max() < 0.2


def test_options_reach_the_encoder(pipe):
    for skip in (0, 1):
        states = states_of(pipe, LONG_PROMPT, clip_skip=skip)[0][0]
        own = encode_prompt(pipe, SENTENCES[0], clip_skip=skip)["prompt_embeds"][0]
        count = len(pipe.tokenizer(SENTENCES[0], add_special_tokens=False).input_ids)
        torch.testing.assert_close(states[: 1 + count], own[: 1 + count], **CLOSE)
    mixed = states_of(pipe, LONG_PROMPT, LONG_PROMPT, negative_clip_skip=None, clip_skip=1)
    torch.testing.assert_close(mixed[1], states_of(pipe, LONG_PROMPT)[0], **CLOSE)


def test_company_changes_only_the_length_and_a_word_that_is_no_window_is_told(pipe):
    both = states_of(pipe, [LONG_PROMPT, LONG_PROMPT[:-90] + " And a cat. " * 30])[0]
    one = states_of(pipe, LONG_PROMPT)[0]
    assert both.shape[1] > one.shape[1]
    torch.testing.assert_close(both[0, : one.shape[1]], one[0], **CLOSE)
    torch.testing.assert_close(both[0, -1], one[0, -1], **CLOSE)
    with pytest.raises(ValueError, match=r"window is 'sentences', .* use 77, 77, 'auto' or 'sentence'\."):
        encode_prompt(pipe, LONG_PROMPT, window="sentences")
    assert BY_SENTENCE == ("sentence", ALWAYS, LONGALIGN)


def test_it_is_a_variant_like_the_others(pipe):
    found = variants_of(pipe, "base", None, ["sentences", "longalign"])
    assert [(key, v.name, v.reach) for key, v in found.items()] == [
        ("sentences", "base-by-sentence", None),
        ("longalign", "base-longalign", None),
    ]
    (named,) = variants_of(pipe, "mine", "sentences").values()
    assert (named.name, named.pipe) == ("mine", pipe)
    for variant in (found["sentences"], named):
        (states,) = (variant.conditioning([LONG_PROMPT])["prompt_embeds"],)
        torch.testing.assert_close(states, states_of(pipe, LONG_PROMPT)[0], **CLOSE)


def test_a_text_of_more_tokens_than_a_stretched_table_is_read_to_its_end(pipe):
    text = " ".join([LONG_PROMPT] * 4)
    states, _ = states_of(pipe, text)
    assert states.shape[1] > 248
    before = {name: value.clone() for name, value in pipe.text_encoder.state_dict().items()}
    again, _ = states_of(pipe, text.replace("lighthouse", "castle", 1))
    assert not torch.allclose(states[0, -1], again[0, -1], atol=1e-4)  # the end has read the first sentence
    assert all(torch.equal(before[name], value) for name, value in pipe.text_encoder.state_dict().items())
