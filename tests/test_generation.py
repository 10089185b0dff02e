"""Pictures of any prompts: kept and found again, judged sentence by sentence, shares and differences by hand."""

import dataclasses
import shutil

import numpy as np
import pytest
from PIL import Image
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline, tiny_tokenizer

from debias_sd.drawing import draw, variants_of
from debias_sd.measure.album import SEED_STEP, PictureStore, Sampling, common_settings, draw_album, hash_pipeline
from debias_sd.measure.judges import Thresholds, Verdict, unjudged
from debias_sd.measure.judging import judge_album, judge_albums
from debias_sd.measure.places import sentences_in
from debias_sd.measure.shares import Table, agreement, counts_of, difference, summarise
from debias_sd.pipelines.load import with_text_encoder
from debias_sd.sentences import split_sentences

PROMPTS = [LONG_PROMPT, "One cat.", "A red dog. A blue cat. A tree.", LONG_PROMPT * 3]
SAMPLING = Sampling(steps=1, guidance=3.0, batch=2)


@pytest.fixture(scope="module")
def base():
    return tiny_sd_pipeline()


@dataclasses.dataclass
class Brightness:
    """Bright pictures show everything, and longer sentences more of it; sentences of one word are unjudged."""

    name: str = "brightness"
    meaning: str = "mean of the pixels, shifted by the sentence"
    thresholds: Thresholds = Thresholds(0.6, 0.4)
    asked: list = dataclasses.field(default_factory=list)

    def judge(self, image, sentences):
        light = np.asarray(image).mean() / 255
        self.asked += [(image.tobytes(), sentence) for sentence in sentences]
        verdicts = []
        for sentence in sentences:
            score = float(np.clip(light + len(sentence) % 7 / 10 - 0.3, 0, 1))
            verdict = Verdict(sentence, score, self.thresholds.mark(score))
            verdicts.append(unjudged(sentence, "one word") if " " not in sentence else verdict)
        return verdicts

    def describe(self):
        return {"kind": "test"}


def store_in(folder, **changes) -> PictureStore:
    return PictureStore(folder, common_settings(steps=1, guidance=3.0, batch=2) | changes)


def album_of(base, folder, *, variant=None, prompts=PROMPTS, seeds=(0, 5), **changes):
    variant = variant or variants_of(base, "own", None)["cut"]
    digest = hash_pipeline(variant.pipe)
    return draw_album(
        variant, prompts, seeds, store=store_in(folder, **changes), pipeline_sha256=digest, sampling=SAMPLING
    )


def test_places_of_sentences():
    sentences = sentences_in(PROMPTS[:3], tiny_tokenizer())
    count = len(split_sentences(LONG_PROMPT))
    assert sentences.texts[2] == ("A red dog.", "A blue cat.", "A tree.")
    assert list(sentences.prompt) == [0] * count + [1] + [2] * 3
    assert list(sentences.number[:3]) == [0, 1, 2]
    assert list(sentences.details[-4:]) == [0, 2, 2, 2]
    assert list(sentences.is_late[-4:]) == [False, False, False, True]
    assert list(sentences.quarter[-3:]) == [-1, 1, 3]
    details = count - 1
    assert list(sentences.quarter[1:count]) == [int(4 * (k + 0.5) / details) for k in range(details)]
    ids = tiny_tokenizer()(LONG_PROMPT, verbose=False)["input_ids"]
    assert sentences.tokens[0] == len(ids)
    last = tiny_tokenizer()(sentences.texts[0][-1])["input_ids"]
    assert sentences.start[count - 1] == len(ids) - len(last) + 1


def test_pictures_are_those_of_their_seeds_and_are_found_again(base, tmp_path):
    first = album_of(base, tmp_path)
    assert (first.drawn, first.found, first.black) == (8, 0, 0)
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")) == [
        f"own/0000{number}-s{seed}.png" for number in range(4) for seed in (0, 5)
    ]
    variant = variants_of(base, "own", None)["cut"]
    wanted = draw(variant, PROMPTS[2:], [5 * SEED_STEP + 2, 5 * SEED_STEP + 3], steps=1, guidance=3.0)
    assert np.array_equal(np.asarray(first.shots[1][3].read()), wanted[1])
    contents = {path: path.read_bytes() for path in tmp_path.rglob("*.png")}
    again = album_of(base, tmp_path)
    assert (again.drawn, again.found) == (0, 8)
    broken = first.shots[0][1].path
    broken.write_bytes(contents[broken][:60])
    first.shots[1][0].path.unlink()
    mended = album_of(base, tmp_path)
    assert (mended.drawn, mended.found) == (4, 4)  # whole batches: a row's last bits depend on its company
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.png")} == contents


@pytest.mark.parametrize("change", ["steps", "prompt", "company", "weights", "scheduler", "seed"])
def test_a_picture_drawn_with_something_else_is_drawn_again(base, tmp_path, change):
    album_of(base, tmp_path, prompts=PROMPTS[:2], seeds=(0,))
    pipe, prompts, seeds, changes = base, list(PROMPTS[:2]), (0,), {}
    if change == "steps":
        changes = {"steps": 2}
    elif change == "prompt":
        prompts[0] = "Two cats."
    elif change == "company":  # the first prompt's batch has another second one
        prompts[1] = "Two cats."
    elif change == "seed":
        seeds = (1,)
        shutil.move(tmp_path / "own" / "00000-s0.png", tmp_path / "own" / "00000-s1.png")
    else:
        pipe = with_text_encoder(base, tiny_encoder(77, seed=9), min_positions=77)
        if change == "scheduler":
            pipe.register_modules(text_encoder=base.text_encoder, tokenizer=base.tokenizer)
            pipe.scheduler = type(pipe.scheduler).from_config(pipe.scheduler.config, beta_end=0.02)
    assert album_of(pipe, tmp_path, prompts=prompts, seeds=seeds, **changes).drawn == 2


def test_black_pictures_are_counted(base, tmp_path):
    album = album_of(base, tmp_path, prompts=PROMPTS[:2], seeds=(0,))
    for shot in album.shots[0]:
        shot.write(np.zeros((8, 8, 3), np.uint8))
    assert album_of(base, tmp_path, prompts=PROMPTS[:2], seeds=(0,)).black == 2


def test_every_picture_is_asked_about_its_own_prompt_and_the_floor_about_the_next(base, tmp_path):
    prompts = PROMPTS[1:3]
    album = album_of(base, tmp_path, prompts=prompts, seeds=(0,))
    sentences, judge = sentences_in(prompts, tiny_tokenizer()), Brightness()
    pixels = [np.asarray(shot.read()).tobytes() for shot in album.shots[0]]
    texts = [("One cat.",), ("A red dog.", "A blue cat.", "A tree.")]
    judge_album(judge, album, sentences)
    assert judge.asked == [(pixels[n], text) for n in (0, 1) for text in texts[n]]
    judge.asked.clear()
    judge_album(judge, album, sentences, shift=1)
    assert judge.asked == [(pixels[1 - n], text) for n in (0, 1) for text in texts[n]]
    album.shots[0][0].path.unlink()
    with pytest.raises(ValueError, match="is gone or was changed while it was judged"):
        judge_album(judge, album, sentences)


def table(scores: list[list[float | None]]) -> Table:
    score = np.array(scores, dtype=float)
    return Table(score, score >= 0.6, (score >= 0.4) & (score < 0.6), {"no detail": int(np.isnan(score).sum())})


# Two prompts of four and of two sentences, two seeds; late are the sentences 2 and 3 of the first, 1 of the second.
HAND = sentences_in(["One cat. Two dogs. Three pigs. Four owls.", "Five cows. Six bats."], tiny_tokenizer())
OURS = table([[0.9, 0.1, 0.5, 0.8, None, 0.7], [0.2, None, 0.9, 0.9, 0.9, 0.3]])
THEIRS = table([[0.1, 0.1, 0.9, 0.1, None, 0.1], [0.2, None, 0.1, None, 0.9, 0.3]])


def test_shares_by_hand():
    assert list(HAND.is_late) == [False, False, True, True, False, True]
    found = summarise(OURS, HAND, samples=50)
    assert found["late_detail"] == pytest.approx(100 * 4 / 6)
    assert found["late_score"] == pytest.approx(100 * np.mean([0.5, 0.8, 0.7, 0.9, 0.9, 0.3]))
    assert found["late_per_prompt"] == [[3, 4], [1, 2]]
    assert found["summary"] == pytest.approx(100 * 2 / 3)
    assert found["first_half"] == 0
    assert found["by_quarter"] == [0, None, 50, 100]
    assert found["judged"] == 10
    assert found["not_judged"] == {"no detail": 2}
    assert found["unsure"] == pytest.approx(10)
    assert found["past_77"] is None
    assert found["late_detail_interval"] == [pytest.approx(50), pytest.approx(75)]
    assert found["scores"][0] == [0.9, 0.1, 0.5, 0.8, None, 0.7]
    assert counts_of(OURS, HAND, HAND.number == 0).tolist() == [[1, pytest.approx(1.1), 2], [1, pytest.approx(0.9), 1]]


def test_quarters_by_hand_and_differences_over_what_was_judged_in_both():
    sentences = sentences_in(["One cat. Two dogs. Three pigs. Four owls. Five cows."], tiny_tokenizer())
    found = summarise(table([[0.0, 0.9, 0.1, None, 0.7]]), sentences, samples=5)
    assert found["by_quarter"] == [100, 0, None, 100]
    assert found["score_by_quarter"] == [90, 10, None, 70]
    assert found["judged_by_quarter"] == [1, 1, 0, 1]
    found = difference(OURS, THEIRS, HAND, samples=50)
    assert found["late_judged"] == 5
    assert found["late_drawn"]["points"] == pytest.approx(100 * (3 - 1) / 5)
    ours, theirs = [0.5, 0.8, 0.7, 0.9, 0.3], [0.9, 0.1, 0.1, 0.1, 0.3]
    assert found["late_score"]["points"] == pytest.approx(100 * (np.mean(ours) - np.mean(theirs)))
    low, high = found["late_drawn"]["interval"]
    assert low <= found["late_drawn"]["points"] <= high
    same = difference(OURS, OURS, HAND, samples=50)
    assert same["all_score"] == {"points": 0.0, "interval": [0.0, 0.0]}


def test_agreement_by_hand():
    found = agreement(OURS, THEIRS)
    assert found["both_judged"] == 9
    assert found["same"] == pytest.approx(100 * 4 / 9)
    chance = 5 / 9 * 2 / 9 + 4 / 9 * 7 / 9
    assert found["kappa"] == pytest.approx((4 / 9 - chance) / (1 - chance))
    perfect = agreement(OURS, OURS)
    assert (perfect["same"], perfect["kappa"], perfect["auc"]) == (100, 1.0, 1.0)
    nothing = table([[None] * 6] * 2)
    assert agreement(nothing, OURS) == {"both_judged": 0, "same": None, "kappa": None, "auc": None}
    assert summarise(nothing, HAND, samples=5)["late_detail_interval"] is None


def test_all_of_it_repeats_and_one_prompt_has_no_floor(base, tmp_path):
    chosen = [*list(variants_of(base, "own", None).values())[:2], *variants_of(base, "long", tiny_encoder()).values()]
    albums = {one.name: album_of(base, tmp_path, variant=one, prompts=PROMPTS[:3]) for one in chosen}
    sentences = sentences_in(PROMPTS[:3], tiny_tokenizer())
    judged = judge_albums(albums, sentences, [Brightness], samples=20)
    assert judged == judge_albums(albums, sentences, [Brightness], samples=20)
    assert list(judged.encoders) == ["own", "own-chunked", "long"]
    assert set(judged.differences["brightness"]) == {"own - own-chunked", "own - long", "own-chunked - long"}
    assert judged.encoders["own"]["brightness"]["floor"]["all"] is not None
    assert judged.agreement == {}
    alone = {"own": album_of(base, tmp_path, prompts=PROMPTS[:1])}
    judged = judge_albums(alone, sentences_in(PROMPTS[:1], tiny_tokenizer()), [Brightness], samples=20)
    assert "floor" not in judged.encoders["own"]["brightness"]


def test_a_stored_picture_holds_its_prompt(base, tmp_path):
    album = album_of(base, tmp_path, prompts=["Ein Bär, 熊."], seeds=(0,))
    with Image.open(album.shots[0][0].path) as picture:
        assert picture.info["prompt"] == "Ein Bär, 熊."
