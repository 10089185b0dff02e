"""Distillation by sentence: each late sentence is held to the states that it has in a window of its own."""

import copy

import pytest
import torch

from debias_sd.tokens import tokenize
from tests.train_tiny import tiny_config
from train_encoder.model.bases import build_model
from train_encoder.model.families import stretch_model
from train_encoder.model.towers import encode_by_length
from train_encoder.pair_terms import LateSentences, Span

LONG = "a small blue ring in the top left and a big green box and a tiny red hoop."  # 19 tokens with its stop
LATE = ["a red star.", "a gray disc in the center!", LONG]


@pytest.fixture
def start(tmp_path):
    config = tiny_config(tmp_path, recipe="debias")
    return *build_model(config), config


class Words:
    """A vocabulary and nothing else."""

    def __init__(self, *words):
        self.words = words

    def get_vocab(self):
        return {word: number for number, word in enumerate(self.words)}


def ids_of(tokenizer, *texts):
    return tokenize(tokenizer, list(texts), length=248, pad_id=0)


def alone(model, tokenizer, sentence):
    """The states of a sentence in a window of its own, without start and end token."""
    ids = tokenize(tokenizer, [sentence], length=77, pad_id=0)
    end = int((ids == tokenizer.eos_token_id).int().argmax())
    return model(input_ids=ids).last_hidden_state[0, 1:end]


def test_late_is_what_begins_behind_the_last_word_of_the_window(start):
    model, tokenizer, _ = start
    term = LateSentences(copy.deepcopy(model.text_model), tokenizer)
    size = len(tokenizer(LONG).input_ids) - 2
    before = 75 // size
    early = " ".join([LONG] * before)
    first = 1 + before * size
    assert term.spans(ids_of(tokenizer, early)) == []
    # One word more or less in front moves the next sentence to 76, which only ever held the end token, or to 75.
    filler = 75 - before * size
    exact = " ".join([early, *["red"] * (filler - 1), ".", LATE[0]])
    assert first + filler == 76
    assert term.spans(ids_of(tokenizer, exact)) == [Span(0, 76, 76 + len(tokenizer(LATE[0]).input_ids) - 2)]
    one_less = " ".join([early, *["red"] * (filler - 2), ".", LATE[0]])
    assert term.spans(ids_of(tokenizer, one_less)) == []
    both = term.spans(ids_of(tokenizer, "a disc.", " ".join([exact, LATE[1]])))
    assert [span.row for span in both] == [1, 1]
    assert both[0].after == both[1].first


def test_pads_in_front_and_words_without_a_stop_are_no_late_sentences(start):
    model, tokenizer, _ = start
    term = LateSentences(copy.deepcopy(model.text_model), tokenizer)
    ids = ids_of(tokenizer, " ".join(LATE))
    end = int((ids == tokenizer.eos_token_id).int().argmax())
    shifted = torch.full_like(ids, 0)
    shifted[:, 0], shifted[:, 100 : 100 + end] = ids[:, 0], ids[:, 1 : end + 1]
    found = term.spans(shifted)
    assert [span.first for span in found] == [100 + len(tokenizer(LATE[0]).input_ids) - 2, found[0].after]
    assert term.spans(ids_of(tokenizer, " ".join(["red"] * 200))) == []


def test_a_sentence_longer_than_the_window_is_read_as_far_as_the_window_goes(start):
    model, tokenizer, _ = start
    term = LateSentences(copy.deepcopy(model.text_model), tokenizer)
    (span,) = term.spans(ids_of(tokenizer, " ".join(["red"] * 80) + ". " + " ".join(["gray"] * 120) + "."))
    assert (span.first, span.after - span.first) == (82, 75)
    ids = ids_of(tokenizer, " ".join(["red"] * 80) + ". " + " ".join(["gray"] * 120) + ".")
    assert torch.isfinite(term.distance(ids, torch.ones(1, 248, model.config.text_config.hidden_size)))


def test_stops_are_punctuation_that_ends_a_word_and_not_a_decimal_point(start):
    vocabulary = ["<s>", "</s>", "!", ".</w>", '!"</w>', ").</w>", ",</w>", "a.</w>", "3</w>", "5</w>", "m</w>", "."]
    model, _, _ = start
    term = LateSentences(copy.deepcopy(model.text_model), Words(*vocabulary))
    assert {vocabulary[number] for number in term.stops} == {".</w>", '!"</w>', ").</w>"}
    term.window, term.start_id, term.end_id = 4, 0, 1
    number = {word: place for place, word in enumerate(vocabulary)}
    words = ["<s>", "m</w>", "m</w>", ".</w>", "3</w>", ".</w>", "5</w>", "m</w>", ".</w>", "</s>"]
    ids = torch.tensor([[number[word] for word in words]])
    assert term.spans(ids) == [Span(0, 4, 6)]  # "3 . 5 m ." as far as a window of 4 goes
    with pytest.raises(ValueError, match="^late_sentences_weight is set and the initial checkpoint's tokenizer"):
        LateSentences(copy.deepcopy(model.text_model), Words("<s>", "</s>", "red</w>"))


def test_the_loss_is_zero_for_the_states_of_windows_of_their_own_and_one_for_none(start):
    model, tokenizer, _ = start
    frozen = copy.deepcopy(model.text_model)
    term = LateSentences(frozen, tokenizer)
    early = " ".join([LONG] * 4)
    ids = ids_of(tokenizer, " ".join([early, *LATE]), "a disc.")
    spans = term.spans(ids)
    assert len(spans) == 3
    hidden = torch.zeros(2, 248, model.config.text_config.hidden_size)
    assert term.distance(ids, hidden).item() == pytest.approx(0.5)  # of two captions one has late sentences
    for span, sentence in zip(spans, LATE, strict=True):
        hidden[span.row, span.first : span.after] = alone(frozen, tokenizer, sentence)
    assert term.distance(ids, hidden).item() == pytest.approx(0.0, abs=1e-10)
    beyond = hidden.clone()
    beyond[0, : spans[0].first] += 1  # what stands before, and after the last, is not held
    beyond[0, spans[-1].after :] += 1
    beyond[1] += 1
    assert torch.equal(term.distance(ids, beyond), term.distance(ids, hidden))
    near = hidden.clone()
    near[0, spans[1].first] += 1
    assert term.distance(ids, near).item() > 1e-4


def test_the_loss_is_a_mean_over_captions(start):
    model, tokenizer, config = start
    term = LateSentences(copy.deepcopy(model.text_model), tokenizer)
    student = stretch_model(model, tokenizer, config)
    texts = [" ".join([LONG] * 4 + LATE[:n]) for n in (1, 2, 3)] + ["a disc."]
    ids = ids_of(tokenizer, *texts)
    hidden = encode_by_length(student.text_model, ids).last_hidden_state
    each = [term.distance(ids[n : n + 1], hidden[n : n + 1]).item() for n in range(4)]
    assert min(each[:3]) > 0
    assert each[3] == 0
    assert term.distance(ids, hidden).item() == pytest.approx(sum(each) / 4)


def test_it_trains_the_student_only_also_without_a_late_sentence(start):
    model, tokenizer, config = start
    frozen = copy.deepcopy(model.text_model)
    term = LateSentences(frozen, tokenizer)
    student = stretch_model(model, tokenizer, config)
    table = student.text_model.embeddings.position_embedding.weight
    for text, moves in ((" ".join([LONG] * 4 + LATE), True), ("a disc.", False)):
        ids = ids_of(tokenizer, text)
        loss = term.distance(ids, encode_by_length(student.text_model, ids).last_hidden_state)
        table.grad = None
        loss.backward()
        assert bool(table.grad.abs().max() > 0) == moves
    hidden = torch.full((1, 248, 4), torch.inf)
    assert str(term.distance(ids, hidden).item()) == "0.0"  # of no state at all: neither NaN nor -0.0 in a log
    assert all(parameter.grad is None for parameter in [*model.parameters(), *frozen.parameters()])
