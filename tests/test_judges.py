"""Judges: sentences changed in one detail, sentences as questions, a dual encoder and the checker on known pictures."""

import dataclasses
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny import END, LONG_PROMPT, save_clip_model
from tiny_siglip import make_siglip
from tiny_world import save_tiny_clip

from debias_sd.datasets.world import prompt_set
from debias_sd.measure import changes as details_module
from debias_sd.measure.changes import changes_of
from debias_sd.measure.judges import Thresholds, Verdict, load_judge
from debias_sd.measure.judges import clip as clip_module
from debias_sd.measure.judges.answers import question_of
from debias_sd.measure.judges.clip import BEHIND_WINDOW, NO_DETAIL, UNKNOWN_WORDS
from debias_sd.sentences import split_sentences
from debias_sd.shapes.render import render

WORLD = prompt_set(0, count=4)
SENTENCE = "There is a small red star in the top left."


def picture(number: int) -> Image.Image:
    return Image.fromarray(render(WORLD.scenes[number]))


def noise(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 30, 3), dtype=np.uint8))


def test_each_detail_is_changed_before_one_is_changed_twice():
    changes = changes_of(SENTENCE)
    assert [change.kind for change in changes] == [
        "size", "colour", "shape", "row", "column", "colour", "shape", "row",
    ]  # fmt: skip
    for change in changes:
        differing = [pair for pair in zip(SENTENCE.split(), change.sentence.split(), strict=True) if pair[0] != pair[1]]
        assert [tuple(word.rstrip(".") for word in pair) for pair in differing] == [(change.word, change.other)]
    assert len({change.sentence for change in changes}) == len(changes)
    assert changes == changes_of(SENTENCE)
    assert changes_of(SENTENCE, limit=3) == changes[:3]


@pytest.mark.parametrize(
    ("sentence", "changed"),
    [
        ("Two dogs run.", {"dogs"}),
        ("An apple lies on a wooden table.", {"apple", "wooden", "table"}),
        ("A cat sits IN  FRONT OF the door.", {"cat", "IN  FRONT OF", "door"}),
        ("He left right away.", set()),
        ("A lamp stands on the left side.", {"lamp", "left"}),
        ("A photograph, detailed.", set()),
    ],
)
def test_what_is_taken_for_a_detail(sentence, changed):
    found = {change.word for change in changes_of(sentence, limit=40)}
    assert changed <= found
    assert changed or not found


def test_new_words_have_one_meaning_their_article_capital_and_plural():
    content = json.loads((Path(details_module.__file__).parent / "detail_words.json").read_text())
    kinds = content["words"] | content["things"]
    entries = [entry.split("/")[0] for meanings in kinds.values() for entry in meanings.replace(",", " ").split()]
    assert [entry for entry, count in Counter(entries).items() if count > 1] == []
    assert min(len(meanings.split()) for meanings in kinds.values()) >= 2
    texts = {change.sentence for change in changes_of("An owl sees a cat and two foxes.", limit=60)}
    assert "A dog sees a cat and two foxes." in texts
    assert "An owl sees an elephant and two foxes." in texts
    assert "An owl sees a cat and two mice." in texts
    assert all(" a elephant" not in text and not text.startswith("An d") for text in texts)
    assert any(change.sentence.startswith("Nine ") for change in changes_of("Two owls.", limit=60))
    changes = changes_of(SENTENCE, limit=60, knows=lambda word: word in ("blue", "large"))
    assert {change.other for change in changes} == {"blue", "large"}
    sentences = split_sentences(LONG_PROMPT)
    assert sum(bool(changes_of(sentence)) for sentence in sentences) >= len(sentences) - 1


@pytest.mark.parametrize(
    ("sentence", "question"),
    [
        ("There is a red kite in the sky.", "Does this image show a red kite in the sky? Answer yes or no."),
        ("This picture shows two dogs!", "Does this image show two dogs? Answer yes or no."),
        ("You can also see a boat,", "Does this image show a boat? Answer yes or no."),
        ('A sign says "stop".', "Does this image show \"A sign says 'stop'\"? Answer yes or no."),
    ],
)
def test_sentences_become_questions(sentence, question):
    assert question_of(sentence) == question


def test_the_score_is_that_of_the_model_itself(tmp_path):
    model = save_clip_model(tmp_path / "clip")
    with torch.no_grad():
        model.logit_scale.fill_(1.0)
    model.save_pretrained(tmp_path / "clip")
    judge = load_judge(f"clip:{tmp_path / 'clip'}")
    sentence = "A red boat lies at the stone pier."
    (verdict,) = judge.judge(noise(), [sentence])
    texts = [sentence, *(change.sentence for change in changes_of(sentence))]
    preprocessing = judge.towers.preprocessing
    pixels = preprocessing.normalise([preprocessing.square(noise())])
    rows = judge.towers.tokenizer(texts, padding=True, return_tensors="pt")
    model.config.text_config.eos_token_id = model.text_model.eos_token_id = END
    with torch.no_grad():
        logits = model(**rows, pixel_values=pixels).logits_per_image[0].double()
    expected = 1 / (1 + (logits[1:] - logits[0]).exp().mean())
    assert verdict.score == pytest.approx(float(expected), abs=1e-5)
    assert abs(verdict.score - 0.5) > 1e-3
    again = judge.judge(noise(1), [sentence, sentence])
    assert again[0] == again[1]
    assert again[0].score != verdict.score


def test_a_judge_that_lives_long_keeps_no_more_texts_than_it_may(tmp_path, monkeypatch):
    save_clip_model(tmp_path / "clip")
    sentences = [f"A red boat lies at pier {number}." for number in range(6)]
    free = load_judge(f"clip:{tmp_path / 'clip'}").judge(noise(), sentences)
    monkeypatch.setattr(clip_module, "_KEPT", 30)
    judge = load_judge(f"clip:{tmp_path / 'clip'}")
    asked = len(judge._rows_of(sentences[0]))
    for place in (0, 1, 2, 3, 4, 5, 0):
        (verdict,) = judge.judge(noise(), [sentences[place]])
        assert verdict.score == pytest.approx(free[place].score, abs=1e-6)
        assert len(judge._features) <= 30
    assert 30 - asked < len(judge._features)  # what may be kept is kept
    verdicts = judge.judge(noise(), sentences)  # more than may be kept: all are judged
    assert [one.score for one in verdicts] == pytest.approx([one.score for one in free], abs=1e-6)


def test_siglip_judges_on_its_own_scale(tmp_path):
    folder = make_siglip(tmp_path / "siglip", "siglip")
    judge = load_judge(f"clip:{folder}")
    (verdict,) = judge.judge(noise(), ["A red boat."])
    assert verdict.is_judged
    assert judge.describe()["kind"] == "SigLIP"
    texts = ["A red boat.", *(change.sentence for change in changes_of("A red boat."))]
    model, preprocessing = judge.towers.model, judge.towers.preprocessing
    pixels = preprocessing.normalise([preprocessing.square(noise())])
    ids = torch.tensor(judge.towers.ids_of(texts)[0])
    with torch.no_grad():
        logits = model(input_ids=ids, pixel_values=pixels).logits_per_image[0].double()
    assert verdict.score == pytest.approx(float(1 / (1 + (logits[1:] - logits[0]).exp().mean())), abs=1e-5)


def test_sentences_that_cannot_be_judged_say_why(tmp_path):
    save_clip_model(tmp_path / "clip")
    judge = load_judge(f"clip:{tmp_path / 'clip'}")
    far = "It goes on and on and on, " * 20 + "to a red boat."
    verdicts = judge.judge(noise(), ["Photo, detailed, 8k.", far, "A red boat."])
    assert [verdict.reason for verdict in verdicts] == [NO_DETAIL, BEHIND_WINDOW, ""]
    assert [(verdict.score, verdict.mark) for verdict in verdicts[:2]] == [(None, "not judged")] * 2
    world = save_tiny_clip(tmp_path / "world")
    (world / "known_words.json").write_text(json.dumps([*"there is a small large red blue star in the".split()]))
    verdicts = load_judge(f"clip:{world}").judge(picture(0), ["There is a red boat.", "There is a red star."])
    assert [verdict.reason for verdict in verdicts] == [UNKNOWN_WORDS, ""]


def test_weights_of_nan_are_refused(tmp_path):
    save_clip_model(tmp_path / "clip")
    path = tmp_path / "clip" / "model.safetensors"
    tensors = load_file(path)
    tensors["visual_projection.weight"][:] = float("nan")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"gives NaN for 'A red boat\.'; its weights|holds NaN or infinite numbers"):
        load_judge(f"clip:{tmp_path / 'clip'}").judge(noise(), ["A red boat."])


def test_marks_follow_the_thresholds_and_the_checker_judges_what_it_can_read():
    thresholds = Thresholds(0.7, 0.3)
    assert [thresholds.mark(score) for score in (0.0, 0.29, 0.3, 0.69, 0.7, 1.0)] == [
        "missing", "missing", "unsure", "unsure", "drawn", "drawn",
    ]  # fmt: skip
    assert {Thresholds(None, None).mark(score) for score in (0.0, 1.0)} == {"unsure"}
    assert dataclasses.replace(thresholds, missing=None).mark(0.0) == "unsure"
    judge = load_judge("checker")
    sentences = list(WORLD.captions[0].sentences)
    assert {verdict.mark for verdict in judge.judge(picture(0), sentences)} == {"drawn"}
    wrong = judge.judge(picture(1), [*sentences, "A quiet harbour."])
    assert {verdict.mark for verdict in wrong[:-1]} == {"missing"}
    assert wrong[-1] == Verdict("A quiet harbour.", None, "not judged", wrong[-1].reason)
    assert "names no thing" in wrong[-1].reason
    with pytest.raises(ValueError, match="multiple of 48"):
        judge.judge(noise(), sentences)


@pytest.mark.parametrize("spec", ["clip", "clip:", "other:x", "", "checker:x"])
def test_a_name_that_is_no_judge_is_refused(spec):
    with pytest.raises(ValueError, match="write clip:FOLDER_OR_ID, vqa:FOLDER_OR_ID or"):
        load_judge(spec)
