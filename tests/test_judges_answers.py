"""Models that answer questions as judges: their numbers are the model's own, in batches and one by one; bad input."""

import dataclasses
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny import edit_json, save_clip_model
from tiny_judges import save_blip, save_llava, save_qwen, word_tokenizer
from transformers import AutoProcessor, BlipForQuestionAnswering, LlavaForConditionalGeneration

from debias_sd.measure.judges import hash_weights, load_judge
from debias_sd.measure.judges.answers import NO_ANSWER, NO_WORDS, answer_tokens, question_of

SENTENCES = [
    "There is a red star.",
    "There is a small blue circle in the top left.",
    "A large green square in the middle.",
    "The cross is yellow, there are a ring, a star, a triangle and a circle in the bottom right.",
]


def noise(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 30, 3), dtype=np.uint8))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("judges")
    return {
        "chat": save_llava(root / "chat"),
        "plain": save_llava(root / "plain", chat=False),
        "blip": save_blip(root / "blip"),
        "qwen": save_qwen(root / "qwen"),
    }


@pytest.mark.parametrize("kind", ["chat", "plain"])
def test_a_model_that_writes_text_is_asked_for_its_next_token(folders, kind):
    verdicts = load_judge(f"vqa:{folders[kind]}").judge(noise(), SENTENCES)
    model = LlavaForConditionalGeneration.from_pretrained(folders[kind]).eval()
    processor = AutoProcessor.from_pretrained(folders[kind])
    for sentence, verdict in zip(SENTENCES, verdicts, strict=True):
        asked = question_of(sentence)
        text = f"<s>USER: <image> {asked} ASSISTANT: " if kind == "chat" else f"<image>\nQuestion: {asked} Answer:"
        inputs = processor(text=text, images=noise(), return_tensors="pt", add_special_tokens=kind == "plain")
        with torch.no_grad():
            chances = model(**inputs).logits[0, -1].softmax(-1)
        yes, no = (
            sum(float(chances[processor.tokenizer.convert_tokens_to_ids(word)]) for word in words)
            for words in (("yes", "Yes"), ("no", "No"))
        )
        assert verdict.score == pytest.approx(yes / (yes + no), abs=1e-5)
    assert len({round(verdict.score, 5) for verdict in verdicts}) == len(verdicts)


def test_blip_is_asked_for_whole_answers(folders):
    verdicts = load_judge(f"vqa:{folders['blip']}").judge(noise(), SENTENCES)
    model = BlipForQuestionAnswering.from_pretrained(folders["blip"]).eval()
    processor = AutoProcessor.from_pretrained(folders["blip"])
    for sentence, verdict in zip(SENTENCES, verdicts, strict=True):
        inputs = processor(images=noise(), text=question_of(sentence, answer="").lower(), return_tensors="pt")
        logs = []
        for word in ("yes", "no"):
            wanted = [*processor.tokenizer.encode(word, add_special_tokens=False), 3]
            output = model.generate(
                **inputs, max_new_tokens=2, do_sample=False, output_logits=True, return_dict_in_generate=True,
                prefix_allowed_tokens_fn=lambda _, ids, wanted=wanted: [wanted[len(ids) - 1]],
            )  # fmt: skip
            steps = zip(output.logits, wanted, strict=True)
            logs.append(sum(float(logits[0].log_softmax(-1)[token]) for logits, token in steps))
        assert verdict.score == pytest.approx(1 / (1 + np.exp(logs[1] - logs[0])), abs=1e-5)
    assert len({round(verdict.score, 5) for verdict in verdicts}) == len(verdicts)


@pytest.mark.parametrize("kind", ["chat", "plain", "blip", "qwen"])
def test_answers_do_not_depend_on_the_batch_and_depend_on_the_picture(folders, kind):
    judge = load_judge(f"vqa:{folders[kind]}")
    whole = [verdict.score for verdict in judge.judge(noise(), SENTENCES)]
    for size in (1, 3):
        again = dataclasses.replace(judge, batch=size).judge(noise(), SENTENCES)
        assert [verdict.score for verdict in again] == pytest.approx(whole, abs=1e-5)
    other = [verdict.score for verdict in judge.judge(noise(1), SENTENCES)]
    assert np.abs(np.subtract(other, whole)).max() > 1e-3
    repeated = judge.judge(noise(), [SENTENCES[0], "...", SENTENCES[0], SENTENCES[2]])
    assert [verdict.score for verdict in repeated] == pytest.approx([whole[0], None, whole[0], whole[2]], abs=1e-5)
    assert repeated[1].reason == NO_WORDS
    assert judge.judge(noise(), []) == []


def test_a_sentence_cannot_end_the_message_and_a_judge_says_what_it_is(folders):
    judge = load_judge(f"vqa:{folders['chat']}")
    plain, typed = judge.judge(noise(), ["There is a red star.", "There is a <image> red </s> star."])
    assert typed.is_judged
    assert typed.score == pytest.approx(plain.score, abs=1e-5)
    chat, blip = (load_judge(f"vqa:{folders[kind]}") for kind in ("chat", "blip"))
    assert chat.name == f"vqa:{folders['chat'].parent.name}/chat"
    about = chat.describe()
    assert about["kind"] == "LlavaForConditionalGeneration"
    assert about["question"] == 'Does this image show "SENTENCE"? Answer yes or no.'
    assert about["sha256"] == hash_weights(folders["chat"])
    assert about["thresholds"] == {"drawn": 0.6, "missing": 0.4, "source": "not calibrated"}
    assert blip.describe()["question"] == 'Does this image show "SENTENCE"?'
    assert blip.describe()["sha256"] != about["sha256"]


def test_the_ways_to_write_yes():
    tokenizer = word_tokenizer()
    yes, no = (answer_tokens(tokenizer, words) for words in (("yes", "Yes", "YES"), ("no", "No", "NO")))
    assert [tokenizer.convert_ids_to_tokens(ids) for ids in (list(yes), list(no))] == [["yes", "Yes"], ["no", "No"]]


def with_weights(source, folder, change):
    """A copy of a model with its tensors changed."""
    shutil.copytree(source, folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_that_says_something_else_has_not_answered(folders, tmp_path):
    def talks(tensors):
        bias = tensors["text_decoder.cls.predictions.bias"]
        bias[:] = 0
        bias[10] = 50

    judge = load_judge(f"vqa:{with_weights(folders['blip'], tmp_path / 'talks', talks)}")
    verdicts = judge.judge(noise(), SENTENCES)
    assert {(verdict.score, verdict.mark, verdict.reason) for verdict in verdicts} == {(None, "not judged", NO_ANSWER)}


def test_nan_is_refused(folders, tmp_path):
    def breaks(tensors):
        tensors["language_model.lm_head.weight"][:] = float("nan")

    folder = with_weights(folders["chat"], tmp_path / "nan", breaks)
    with pytest.raises(ValueError, match=r"^judge vqa:.* gives NaN for 'There is a red star\.': numbers overflowed"):
        load_judge(f"vqa:{folder}").judge(noise(), SENTENCES)


def test_folders_that_are_no_judge_are_named(folders, tmp_path):
    with pytest.raises(ValueError, match=r"was not found locally or on the Hub"):
        load_judge("vqa:nobody/nothing")
    bare = shutil.copytree(folders["chat"], tmp_path / "bare")
    (bare / "model.safetensors").rename(bare / "pytorch_model.bin")
    with pytest.raises(ValueError, match="holds no safetensors, and pickles are not read"):
        load_judge(f"vqa:{bare}")
    save_clip_model(tmp_path / "clip")
    with pytest.raises(ValueError, match="cannot be loaded by AutoModelForImageTextToText"):
        load_judge(f"vqa:{tmp_path / 'clip'}")
    short = with_weights(folders["chat"], tmp_path / "short", lambda t: t.pop("language_model.lm_head.weight"))
    with pytest.raises(ValueError, match="lack 1 tensor, lm_head.weight first"):
        load_judge(f"vqa:{short}")
    captions = shutil.copytree(folders["blip"], tmp_path / "captions")
    edit_json(captions / "config.json", architectures=["BlipForConditionalGeneration"])
    with pytest.raises(ValueError, match="is a BLIP that captions or ranks"):
        load_judge(f"vqa:{captions}")
    no_processor = shutil.copytree(folders["chat"], tmp_path / "no-processor")
    for path in [*no_processor.glob("*processor*"), *no_processor.glob("chat*")]:
        path.unlink()
    with pytest.raises(ValueError, match="lacks the processor|cannot be loaded by AutoProcessor"):
        load_judge(f"vqa:{no_processor}")
