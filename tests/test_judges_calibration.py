"""Calibration: thresholds and what they are worth, on scores and pictures that a person can check."""

import json

import numpy as np
import pytest
from PIL import Image
from tiny import edit_json
from tiny_world import save_tiny_clip

from debias_sd.cli import main
from debias_sd.encoder_folder import WEIGHTS
from debias_sd.measure.bootstrap import draw_groups, middle_of
from debias_sd.measure.judges import Thresholds, load_judge
from debias_sd.measure.judges.calibration import (
    Scores,
    accuracy,
    auc,
    calibrate,
    choose_thresholds,
    measure,
    read_thresholds,
)
from debias_sd.measure.judges.known import ELSEWHERE, NEAR_MISS, TRUE, read_known, world_pictures
from debias_sd.report import Report

NO_WEIGHTS = pytest.mark.skipif(not (WEIGHTS / "base").is_dir(), reason="the embedded encoders have not been made")


def scores_of(true: list[float], false: list[float]) -> Scores:
    """One picture a claim."""
    score = np.array(true + false)
    is_true = np.arange(len(score)) < len(true)
    kinds = tuple("true" if flag else "false" for flag in is_true)
    return Scores(np.arange(len(score)), kinds, is_true, score, score[::-1].copy())


def test_auc_counts_pairs_and_half_of_the_ties_and_draws_are_of_groups():
    rng = np.random.default_rng(0)
    true, false = rng.integers(0, 6, 40) / 5, rng.integers(0, 6, 30) / 5
    pairs = [(a > b) + (a == b) / 2 for a in true for b in false]
    assert auc(true, false) == pytest.approx(np.mean(pairs))
    assert np.isnan(auc(true, false[:0]))
    draws = draw_groups(5, samples=7, seed=3)
    assert draws.shape == (7, 5)
    assert np.array_equal(draws, draw_groups(5, samples=7, seed=3))
    assert middle_of(np.arange(101.0)) == [2.5, 97.5]
    assert middle_of(np.array([1.0, np.nan, np.nan])) is None


def test_scores_that_part_well_leave_no_room_for_doubt():
    scores = scores_of([0.6, 0.7, 0.9], [0.1, 0.2, 0.4])
    at, thresholds = choose_thresholds(scores, source="here")
    assert at == pytest.approx(0.5)
    assert thresholds == Thresholds(at, at, "here")
    assert accuracy(scores, at) == 1
    found = measure(scores, at, thresholds, samples=20)
    assert (found["auc"], found["accuracy"]) == (1.0, 1.0)
    assert found["drawn_that_is_true"] == found["missing_that_is_false"] == 100
    assert found["marks_of_true"] == {"drawn": 100.0, "missing": 0.0, "unsure": 0.0}
    assert found["floor"]["auc"] == 0


def test_scores_that_overlap_leave_a_band_of_doubt_and_a_judge_that_knows_nothing_says_nothing():
    rng = np.random.default_rng(1)
    halves = [scores_of(list(rng.normal(0.6, 0.2, 4000)), list(rng.normal(0.4, 0.2, 1000))) for _ in range(2)]
    at, thresholds = choose_thresholds(halves[0], sure=0.8, source="")
    assert at == pytest.approx(0.5, abs=0.05)
    assert thresholds.missing < at < thresholds.drawn
    found = measure(halves[1], at, thresholds, samples=20)
    assert found["drawn_that_is_true"] == pytest.approx(80, abs=4)
    assert found["missing_that_is_false"] == pytest.approx(80, abs=4)
    assert found["auc_interval"][0] < 0.76 < found["auc_interval"][1]  # Phi(0.2 / (0.2 * sqrt(2)))
    rng = np.random.default_rng(2)
    scores = scores_of(list(rng.random(3000)), list(rng.random(3000)))
    _, thresholds = choose_thresholds(scores, source="")
    assert (thresholds.drawn, thresholds.missing) == (None, None)


def test_the_worlds_pictures_have_sentences_that_the_checker_calls_right():
    known = world_pictures(seed=0, count=20)
    kinds = [claim.kind for picture in known.pictures for claim in picture.claims]
    assert [kinds.count(kind) for kind in (TRUE, NEAR_MISS, ELSEWHERE)] == [60, 60, 60]
    assert known.describe() == world_pictures(seed=0, count=20).describe()
    other = world_pictures(seed=1, count=20).describe()
    assert all(known.describe()[name] != other[name] for name in ("claims_sha256", "pictures_sha256"))
    found = calibrate(load_judge("checker"), known, samples=50)
    assert (found["auc"], found["auc_interval"], found["accuracy"]) == (1.0, [1.0, 1.0], 1.0)
    assert found["auc_by_kind"] == {NEAR_MISS: 1.0, ELSEWHERE: 1.0}
    assert found["floor"]["auc"] == pytest.approx(0.5, abs=0.05)
    assert found["floor"]["marks_of_true"]["drawn"] < 10
    assert found["pictures"] == 10


@NO_WEIGHTS
@pytest.mark.parametrize("name", [pytest.param("base", marks=pytest.mark.slow), "debias"])
def test_a_shipped_encoder_judges_better_than_chance_and_only_in_the_right_picture(name):
    found = calibrate(load_judge(f"clip:{name}"), world_pictures(seed=5, count=50), samples=200)
    assert found["auc_interval"][0] > 0.5
    assert abs(found["floor"]["auc"] - 0.5) < 0.08
    assert found["auc_by_kind"][ELSEWHERE] > found["auc_by_kind"][NEAR_MISS]


def own_list(folder, rows: list[object]):
    for number in range(6):
        Image.new("RGB", (12, 9), (40 * number, 0, 0)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"\x89PNG nothing")
    path = folder / "known.jsonl"
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return path


ROWS = [{"image": f"{n}.png", "true": [f"A red cat {n}."], "false": [f"A blue cat {n}."]} for n in range(6)]


def test_a_users_own_list_is_read_and_what_cannot_be_used_is_counted(tmp_path):
    extra = [
        {"image": "broken.png", "true": ["A cat."]},
        {"image": "none.png", "false": ["A cat."]},
        {"image": "0.png", "true": [" "]},
        {"file_name": "1.png", "true": ["A red  cat.", "A red  cat."]},
    ]
    known = read_known(own_list(tmp_path, [*ROWS, "", *extra]))
    assert dict(known.left_out) == {"truncated picture": 1, "missing picture": 1, "no sentence": 1}
    assert [claim.sentence for claim in known.pictures[6].claims] == ["A red cat."]
    assert known.describe()["claims"] == {"true": 7, "false": 6}
    moved = tmp_path / "elsewhere.jsonl"
    moved.write_text((tmp_path / "known.jsonl").read_text())
    assert len(read_known(moved, image_root=tmp_path, count=4).pictures) == 4


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*ROWS, "{"], "line 7 of .* is not JSON"),
        ([*ROWS, "[1]"], "line 7 of .* is not a JSON object"),
        ([{"true": ["x"]}], "names no picture"),
        ([{"image": "0.png", "true": "x"}], "'true' in line 1 of .* is not a list of sentences"),
        (ROWS[:3], "has 3 pictures that can be read but needs 4 or more"),
        ([{"image": f"{n}.png", "true": ["x"]} for n in range(6)], "sentences that are true and sentences that are"),
        ([], "has 0 pictures"),
    ],
)
def test_a_list_that_is_none_is_refused(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        read_known(own_list(tmp_path, rows))


def test_a_judge_that_can_judge_nothing_is_refused(tmp_path):
    known = read_known(own_list(tmp_path, ROWS))
    with pytest.raises(ValueError, match=r"judged too few sentences of known\.jsonl \(0 in all\)"):
        calibrate(load_judge(f"clip:{save_world(tmp_path)}"), known)


def save_world(folder):
    """A tiny CLIP that says which words it knows."""
    save_tiny_clip(folder / "clip")
    (folder / "clip" / "known_words.json").write_text('["star"]')
    return folder / "clip"


def test_the_command_writes_a_report_whose_thresholds_the_same_judge_gets_back(tmp_path, capsys):
    spec, out = f"clip:{save_tiny_clip(tmp_path / 'clip')}", tmp_path / "judge.json"
    command = ["calibrate", "--judge", spec, "--judge", "checker", "--count", "8", "--samples", "9", "--out", str(out)]
    assert main(command) == 0
    assert "checker: AUC 1.000 (95 %: 1.000 to 1.000)" in capsys.readouterr().out
    report = Report.read(out)
    assert report.kind == "judge"
    assert report.settings["claims"] == {"true": 24, "near miss": 24, "elsewhere": 24}
    judge = load_judge(spec, calibration=[out])
    assert vars(judge.thresholds) == report.encoders[judge.name]["thresholds"]
    assert judge.thresholds.source == "world, 4 pictures"
    assert load_judge(spec).thresholds.source == "not calibrated"
    other = f"clip:{save_tiny_clip(tmp_path / 'other', seed=1)}"
    assert read_thresholds([out], load_judge(other)) is None
    save_tiny_clip(tmp_path / "clip", seed=2)
    with pytest.raises(ValueError, match=r"sha256 of clip:.*/clip differs in .*judge\.json; calibrate it again"):
        load_judge(spec, calibration=[out])
    edit_json(out, kind="retrieval")
    with pytest.raises(ValueError, match="is of kind retrieval, not a calibration"):
        load_judge(spec, calibration=[out])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--count", "3"], "--count is 3 but must be 4 or more"),
        (["--sure", "0.5"], "--sure is 0.5 but must be between"),
        (["--samples", "0"], "--samples is 0"),
        (["--seed", "-1"], "--seed is -1"),
        (["--known", "none.jsonl"], "file of known pictures none.jsonl does not exist"),
        (["--device", "mars"], "device mars is not available"),
    ],
)
def test_settings_that_cannot_be_are_one_sentence(tmp_path, capsys, options, message):
    assert main(["calibrate", "--judge", "checker", "--out", str(tmp_path / "x.json"), *options]) == 2
    assert capsys.readouterr().err.strip().startswith(f"debias-sd: error: {message}")
    assert not (tmp_path / "x.json").exists()
