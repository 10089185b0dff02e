"""Verdicts on real pipelines: a tiny Stable Diffusion with CLIP's vocabulary, judged by a tiny CLIP."""

import dataclasses
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_app import drawn
from tiny_judges import save_blip, save_llava

from app.keep import gallery_html, page_of, png_of
from app.live_run import Run
from app.models import Models, about_judge
from app.page import judged_by
from app.request import Settings
from app.result import result_of
from app.routes import answer_of
from app.stage import panel_html
from app.table import run_table
from debias_sd.cli import main
from debias_sd.comparison import judge_sentences
from debias_sd.measure.judges import NOT_JUDGED, Thresholds, load_judge
from debias_sd.report import Report

# Pictures are drawn in a thread of its own, where several threads of torch share sums out otherwise.
pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = "A red cat sits on a wooden table. " + "Two small dogs run in a green park. " * 7 + "It is. A blue bird flies."
OPTIONS = {"encoders": {"CLIP": "base", "Long": "long"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("judged")
    tiny_sd_pipeline().save_pretrained(folder / "sd")
    tiny_encoder(248, seed=1).save(folder / "long")
    save_clip_model(folder / "judge", seed=3)
    return folder


@pytest.fixture(scope="module")
def settings(root) -> Settings:
    encoders = {"CLIP": "base", "Long": str(root / "long")}
    return Settings(base=str(root / "sd"), encoders=encoders, judge=f"clip:{root / 'judge'}")


@pytest.fixture(scope="module")
def models(settings) -> Models:
    return Models.load(settings)


def run_of(models: Models, seeds: int = 1) -> Run:
    return drawn(models, PROMPT, ("CLIP", "Long"), seed=2, seeds=seeds, steps=2)


def test_verdicts_are_the_judges_and_reach_page_api_and_downloads(models, root, settings):
    run = run_of(models)
    assert [track.state for track in run.tracks] == ["done", "done"], [track.fault for track in run.tracks]
    judge, texts = load_judge(f"clip:{root / 'judge'}"), [sentence.text for sentence in run.sentences]
    for track in run.tracks:
        (picture,) = track.pictures
        assert picture.verdicts == judge_sentences(judge, picture.image, run.sentences, window=track.window)
        told = [verdict.mark for verdict in picture.verdicts]
        assert told[texts.index("It is.")] == NOT_JUDGED
        assert len(picture.maps) == len(texts)  # a judge does not take the maps away
    answer = answer_of(run)
    assert answer["judge"]["name"] == judge.name
    assert answer["judge"]["meaning"] == judge.meaning
    assert (
        answer["encoders"]["Long"]["pictures"][0]["verdicts"][0]["score"] == run.tracks[1].pictures[0].verdicts[0].score
    )
    page = run_table(run, models)
    assert "Not judged" not in result_of(run)
    assert f"score {run.tracks[1].pictures[0].verdicts[0].score:.2f}" in page
    with Image.open(io.BytesIO(png_of(run))) as image:
        content = json.loads(image.text["debias_sd"])
    assert content["judge"] == answer["judge"]
    assert content["result"]["sentences"][0]["marks"]["Long"] == run.tracks[1].pictures[0].verdicts[0].mark
    assert judge.name in page_of(run, models, settings)


@pytest.mark.parametrize("save", [save_blip, save_llava])
def test_a_model_that_answers_questions_judges_too(save, settings, tmp_path):
    spec = f"vqa:{save(tmp_path / 'asked')}"
    models = Models.load(dataclasses.replace(settings, judge=spec))
    run = run_of(models)
    judge, texts = load_judge(spec), [sentence.text for sentence in run.sentences]
    for track in run.tracks:
        (picture,) = track.pictures
        expected = judge.judge(Image.fromarray(picture.image), texts)
        assert [v.score for v in picture.verdicts] == [None if v.reason else v.score for v in expected]
        assert sum(v.score is not None for v in picture.verdicts) > 5
    assert judged_by(models).startswith(f"Judged by {judge.name}: {judge.meaning}; ")
    assert answer_of(run)["judge"]["name"] == judge.name


def test_a_report_gives_the_judge_its_thresholds(root, settings, tmp_path, capsys):
    out = tmp_path / "judge.json"
    command = ["calibrate", "--judge", settings.judge, "--count", "8", "--samples", "9", "--out", str(out)]
    assert main(command) == 0
    capsys.readouterr()
    models = Models.load(dataclasses.replace(settings, judge_report=str(out)))
    found = Report.read(out).encoders[models.judge.name]["thresholds"]
    assert vars(models.judge.thresholds) == found
    assert answer_of(run_of(models))["judge"]["thresholds"] == found
    assert "world, 4 pictures" in judged_by(models)
    save_clip_model(tmp_path / "other", seed=4)
    other = f"clip:{tmp_path / 'other'}"
    with pytest.raises(ValueError, match=r"^report .*judge\.json is not about judge .*/other; calibrate it"):
        Models.load(dataclasses.replace(settings, judge=other, judge_report=str(out)))
    with pytest.raises(ValueError, match=r"none\.json"):
        Models.load(dataclasses.replace(settings, judge_report=str(tmp_path / "none.json")))


def test_the_page_says_who_judges_and_what_the_score_is(models):
    said = judged_by(models)
    assert said.startswith(f"Judged by {models.judge.name}: {models.judge.meaning}; thresholds: not calibrated. ")
    assert "? unsure" in said


def test_a_judge_that_can_never_say_drawn_has_no_share_of_drawn(models, monkeypatch):
    """In its calibration no score was sure enough: 0 percent would be said of the pictures."""
    thresholds = Thresholds(drawn=None, missing=0.4, source="a report")
    monkeypatch.setattr(models, "judge", dataclasses.replace(models.judge, thresholds=thresholds))
    monkeypatch.setitem(models.about_judge, "thresholds", dataclasses.asdict(thresholds))
    run = run_of(models, seeds=2)
    for track, encoder in zip(run.tracks, answer_of(run)["encoders"].values(), strict=True):
        pictures = encoder["pictures"]
        assert [picture["late_detail"] for picture in pictures] == [None, None]
        page = panel_html(run, track) + result_of(run)
        scores = [v["score"] for picture in pictures for v in picture["verdicts"] if v["score"] is not None]
        assert f"{track.title} <b>{np.mean(scores):.2f}</b>" in page
        assert "By its thresholds this judge is never sure enough" in page
        assert not re.search(r"\d %|drawn <b>|drew <b>|\d+ of \d+ sentences|✓", page)
    assert "%" not in gallery_html([run], 0)


class Broken:
    """A judge that fails as models do."""

    name, meaning, thresholds = "clip:x", "nothing", Thresholds()

    def __init__(self, error: Exception) -> None:
        self.error = error

    def judge(self, *_: object) -> None:
        raise self.error

    def describe(self) -> dict[str, object]:
        return {"kind": "clip"}


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("judge clip:x gives NaN; take another."), "judge clip:x gives NaN"),
        (RuntimeError("/secret exploded"), "the judge failed (RuntimeError); the terminal of the app"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out of memory"),
    ],
)
def test_a_judge_that_fails_leaves_the_picture(models, monkeypatch, error, sentence):
    monkeypatch.setattr(models, "judge", Broken(error))
    run = run_of(models)
    assert [track.state for track in run.tracks] == ["done", "done"]
    for track in run.tracks:
        assert {verdict.mark for verdict in track.pictures[0].verdicts} == {NOT_JUDGED}
        assert track.pictures[0].verdicts[0].reason.startswith(sentence)
        page = run_table(run, models) + result_of(run)
        assert sentence[1:] in page
        assert "/secret" not in page
    assert len(models.queue) == 0


def test_a_judge_goes_by_its_name_alone(models, root):
    """Case 141: an absolute path is none of a judge's name and of where its thresholds come from."""
    private, public = (
        Settings(base="org/sd", **OPTIONS, judge=f"clip:{root / 'judge'}", host=host)
        for host in ("127.0.0.1", "0.0.0.0")
    )
    calibrated = Thresholds(drawn=0.6, missing=0.4, source=f"{root / 'known.jsonl'}, 8 pictures")
    judge = dataclasses.replace(models.judge, thresholds=calibrated)
    assert about_judge(judge, private)["name"] == judge.name == f"clip:{root.name}/judge"
    assert about_judge(judge, public)["name"] == "clip:judge"
    for settings in (private, public):
        assert about_judge(judge, settings)["thresholds"]["source"] == "known.jsonl, 8 pictures"
        assert about_judge(None, settings) is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"judge": "clip:x"}, "--judge is clip:x, but the embedded models have their own"),
        ({"judge_report": "r.json"}, "--judge-report is given without --judge"),
    ],
)
def test_an_operators_fault_is_one_sentence(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        Settings(**options)


@pytest.mark.parametrize("judge", ["clip:{}/none", "nobody", "vqa:"])
def test_a_judge_that_is_not_there_stops_the_start(root, settings, judge):
    spec = judge.format(root)
    with pytest.raises(ValueError, match=r".") as caught:
        Models.load(Settings(base=settings.base, encoders=settings.encoders, judge=spec))
    assert "\n" not in str(caught.value)
