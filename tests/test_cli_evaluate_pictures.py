"""`debias-sd evaluate fidelity --prompts --judge`: a real pipeline, real judges, a report; faults in one sentence."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import LONG_PROMPT, save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_judges import save_blip, save_llava
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd.cli import main
from debias_sd.report import Report
from debias_sd.sentences import split_sentences

LONG = LONG_PROMPT.replace(". ", "; ", 6)  # past 77 tokens, and fewer sentences to judge
PROMPTS = [LONG, "A red cat. Two dogs behind a blue door.", "", "A red cat. Two dogs behind a blue door."]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("pictures")
    tiny_sd_pipeline().save_pretrained(root / "sd")
    tiny_encoder().save(root / "long")
    save_clip_model(root / "clip")
    save_llava(root / "llava")
    save_blip(root / "blip")
    tiny_pipeline().save_pretrained(root / "world")
    save_tiny_clip(root / "world-clip")
    (root / "prompts.jsonl").write_text("\n".join(json.dumps({"id": n, "prompt": p}) for n, p in enumerate(PROMPTS)))
    return root


def fidelity(world, out, *options, base="sd", encoders=("clip-s0=base", "long-s0={}/long")):
    names = [encoder.format(world) for encoder in encoders]
    command = ["evaluate", "fidelity", "--encoder", *names, "--out", out, "--steps", 1, "--samples", 20]
    command += ["--base", world / base] if base else []
    return main([str(part) for part in (*command, *options)])


def test_a_report_has_every_way_judge_and_difference(world, tmp_path, capsys):
    out, specs = tmp_path / "r.json", [f"clip:{world / 'clip'}", f"vqa:{world / 'llava'}", f"vqa:{world / 'blip'}"]
    judges = [option for spec in specs for option in ("--judge", spec)]
    options = ["--prompts", world / "prompts.jsonl", "--seeds", 0, 3, "--pictures", tmp_path / "kept"]
    assert fidelity(world, out, *options, *judges) == 0
    said = capsys.readouterr()
    report = Report.read(out)
    assert report.kind == "fidelity"
    assert list(report.encoders) == [
        "clip-s0",
        "clip-chunked-s0",
        "clip-stretched-s0",
        "clip-by-sentence-s0",
        "long-s0",
    ]
    assert {name: report.settings[name] for name in ("count", "empty", "repeated", "seeds", "steps", "batch")} == {
        "count": 3, "empty": 1, "repeated": 1, "seeds": [0, 3], "steps": 1, "batch": 1,
    }  # fmt: skip
    for name, result in report.encoders.items():
        assert len(result["judges"]) == 3
        assert result["pictures"] == {"drawn": 6, "found": 0, "black": 0}
        assert result["window"] == (77 if name in ("clip-s0", "clip-chunked-s0", "clip-by-sentence-s0") else 248)
        assert result["prompts_past_window"] == (1 if result["window"] == 77 else 0)
        for scores in result["judges"].values():
            assert np.shape(scores["scores"]) == (2, len(split_sentences(LONG)) + 2 + 2)
            assert len(scores["late_per_prompt"]) == 3
    assert len(report.encoders["long-s0"]["sha256"]) == 64
    assert len(report.extra["differences_of_pictures"]) == 3
    assert all(len(pairs) == 10 for pairs in report.extra["differences_of_pictures"].values())
    assert len(report.extra["agreement"]) == 3
    assert [judge["sha256"] for judge in report.extra["judges"].values()]
    assert "1 prompt without text left out" in said.err
    assert "1 prompt repeated, and kept" in said.err
    assert said.err.count("is not calibrated, its marks are a guess") == 3
    assert said.out.count("late details drawn") == 15
    kept = sorted(path.name for path in (tmp_path / "kept" / "long-s0").iterdir())
    assert kept == [f"0000{number}-s{seed}.png" for number in range(3) for seed in (0, 3)]
    assert fidelity(world, tmp_path / "again.json", *options, *judges[:2]) == 0
    again = Report.read(tmp_path / "again.json")
    for name, result in again.encoders.items():
        assert result["pictures"] == {"drawn": 0, "found": 6, "black": 0}
        ((judge, scores),) = result["judges"].items()
        assert scores == report.encoders[name]["judges"][judge]
    for what in ("judges", "differences_of_pictures"):
        assert again.extra[what] == {judge: report.extra[what][judge]}


def test_seeds_are_those_of_stock_diffusers(world, tmp_path):
    options = ["--prompts", world / "prompts.jsonl", "--judge", f"clip:{world / 'clip'}", "--pictures", tmp_path]
    assert fidelity(world, tmp_path / "r.json", *options, "--seeds", 4, "--count", 2, encoders=("own=base",)) == 0
    pipe = tiny_sd_pipeline()
    output = pipe(
        PROMPTS[1],
        num_inference_steps=1,
        guidance_scale=7.5,
        generator=torch.Generator().manual_seed(4_000_001),
        output_type="np",
    )
    with Image.open(tmp_path / "own" / "00001-s4.png") as picture:
        assert np.array_equal(np.asarray(picture), np.rint(255 * output.images[0]).astype(np.uint8))


def test_reports_become_tables_plots_and_a_page(world, tmp_path, capsys):
    judge, out, calibration = f"clip:{world / 'world-clip'}", tmp_path / "r.json", tmp_path / "judge.json"
    assert main(["calibrate", "--judge", judge, "--count", "8", "--samples", "9", "--out", str(calibration)]) == 0
    options = ["--judge", "checker", "--judge", judge, "--calibration", calibration, "--count", 3]
    assert fidelity(world, out, *options, base="world", encoders=("base-s0={}/world-clip",)) == 0
    report = Report.read(out)
    assert report.settings["prompts"] == "world"
    name = f"clip:{world.name}/world-clip"
    assert list(report.extra["agreement"]) == [f"{name} against checker"]
    assert report.extra["judges"][name]["thresholds"]["source"] == "world, 4 pictures"
    capsys.readouterr()
    plots = ["--html", str(tmp_path / "page.html"), "--plots", str(tmp_path / "plots")]
    assert main(["report", str(out), str(calibration), *plots]) == 0
    text = capsys.readouterr().out
    for title in (
        "### Pictures by checker", f"### Pictures by {name}", "### Differences in late details",
        "### Judges against each other", "### Judges where the content is known",
    ):  # fmt: skip
        assert title in text
    late = report.encoders["base-s0"]["judges"]["checker"]["late_detail"]
    assert f"| base-s0 | {late:.1f} |" in text
    names = {"pictures-checker.png"}
    if report.extra["judges"][name]["thresholds"]["drawn"] is not None:
        names.add(f"pictures-{name.replace(':', '-').replace('/', '-')}.png")
    assert {path.name for path in (tmp_path / "plots").iterdir()} == names
    page = (tmp_path / "page.html").read_text()
    assert page.count("data:image/png;base64,") == len(names)
    assert page.count("data:image/jpeg;base64,") == 4 * 3
    assert "base-chunked-s0: " in page
    assert "Pictures by checker" in page


def test_the_checker_is_the_judge_of_the_worlds_pictures_where_none_is_named(world, tmp_path):
    (tmp_path / "own.txt").write_text(
        "There is a small red star in the top left. A large blue ring sits in the center.\n"
    )
    options = ["--prompts", tmp_path / "own.txt", "--no-floor"]
    assert fidelity(world, tmp_path / "r.json", *options, base="world", encoders=("base={}/world-clip",)) == 0
    (scores,) = Report.read(tmp_path / "r.json").encoders["base"]["judges"].items()
    assert scores[0] == "checker"
    assert scores[1]["judged"] == 2
    assert "floor" not in scores[1]


def test_the_world_and_its_checker_are_measured_where_nothing_is_named(world, tmp_path):
    named = ["--prompts", "world", "--judge", "checker"]
    for name, options in (("plain", []), ("named", named)):
        out = tmp_path / name
        assert fidelity(world, out, *options, "--count", 2, "--seed", 3, base="world", encoders=("own=base",)) == 0
    plain, again = (Report.read(tmp_path / name) for name in ("plain", "named"))
    assert (plain.settings, plain.encoders, plain.extra) == (again.settings, again.encoders, again.extra)
    assert (plain.settings["prompts"], plain.settings["batch"], plain.settings["seeds"]) == ("world", 25, [3])
    assert list(plain.extra["checker_errors"]) == ["rendered", "noise_10", "vae"]
    scores = plain.encoders["own-chunked"]["judges"]["checker"]
    assert list(scores["late_aspects"]) == ["colour", "shape", "anything"]
    assert scores["unnamed"]["cells"] >= 0


def test_a_judge_that_can_never_say_drawn_has_no_share_in_the_terminal(world, tmp_path, capsys):
    judge, calibration = f"clip:{world / 'world-clip'}", tmp_path / "judge.json"
    assert main(["calibrate", "--judge", judge, "--count", "8", "--samples", "9", "--out", str(calibration)]) == 0
    content = json.loads(calibration.read_text())
    (about,) = content["encoders"].values()
    about["thresholds"]["drawn"] = None
    calibration.write_text(json.dumps(content))
    options = ["--judge", "checker", "--judge", judge, "--calibration", calibration, "--count", 2, "--no-floor"]
    capsys.readouterr()
    assert fidelity(world, tmp_path / "r.json", *options, base="world", encoders=("own=base",)) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("own: late details")]
    assert lines[0].startswith("own: late details drawn ")
    assert lines[0].endswith(", by checker")
    words = "own: late details never drawn, 0 is not a measurement, only the mean scores are, mean score "
    assert lines[1].startswith(words)


def test_a_faulty_encoder_is_told_before_pictures_of_the_others_are_drawn(world, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    tiny_encoder(width=64).save(tmp_path / "wide")
    options = [
        "--prompts",
        world / "prompts.jsonl",
        "--judge",
        f"clip:{world / 'clip'}",
        "--pictures",
        tmp_path / "kept",
    ]
    for folder, sentence in (
        (tmp_path / "empty", "config.json does not exist"),
        (tmp_path / "wide", "the encoder is 64 wide and text_encoder"),
    ):
        assert fidelity(world, tmp_path / "r.json", *options, encoders=("own=base", f"other={folder}")) == 2
        assert sentence in capsys.readouterr().err
    assert not (tmp_path / "kept").exists()


def test_prompts_of_one_sentence_have_no_late_details_and_it_is_said(world, tmp_path, capsys):
    (tmp_path / "short.txt").write_text("A red cat.\nA blue dog, detailed\n8k\n")
    options = ["--prompts", tmp_path / "short.txt", "--judge", f"clip:{world / 'clip'}"]
    assert fidelity(world, tmp_path / "r.json", *options, encoders=("own=base",)) == 0
    said = capsys.readouterr()
    assert "every prompt is one sentence, so there are no late details" in said.err
    assert "could not judge 1 of 3 sentences of own." in said.err
    assert "own: late details drawn – %" in said.out
    assert Report.read(tmp_path / "r.json").encoders["own"]["judges"][f"clip:{world.name}/clip"]["judged"] == 2
    assert main(["report", str(tmp_path / "r.json")]) == 0


@pytest.mark.parametrize(
    ("options", "base", "message"),
    [
        (["--prompts", "none.txt", "--judge", "clip:CLIP"], "sd", "file of prompts none.txt cannot be read"),
        (["--prompts", "PROMPTS"], "sd", "the checker reads pictures of the embedded world alone"),
        (
            ["--prompts", "PROMPTS", "--judge", "checker"],
            "sd",
            "the checker reads pictures of the embedded world alone",
        ),
        (["--judge", "clip:CLIP"], "sd", "--prompts is not set, and the embedded world's are for a base of its own"),
        (["--prompts", "world"], "sd", "--prompts is not set, and the embedded world's are for a base of its own"),
        (["--prompts", "PROMPTS", "--judge", "eyes"], "sd", "unknown judge 'eyes'"),
        (["--prompts", "PROMPTS", "--judge", "clip:CLIP", "--seeds", "1", "1"], "sd", "--seeds are [1, 1]"),
        (["--prompts", "PROMPTS", "--judge", "clip:CLIP", "--batch", "0"], "sd", "--batch is 0"),
        (
            ["--prompts", "PROMPTS", "--judge", "clip:CLIP", "--calibration", "x.json"],
            "sd",
            "report x.json does not exist",
        ),
        (["--judge", "checker", "--calibration", "x.json"], "world", "--calibration is for judges that are models"),
        (["--prompts", "PROMPTS", "--calibration", "x.json"], "world", "--calibration is for judges that are models"),
        ([], "sd", "--prompts is not set, and the embedded world's are for a base of its own"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(world, tmp_path, capsys, options, base, message):
    filled = [
        option.replace("PROMPTS", str(world / "prompts.jsonl")).replace("CLIP", str(world / "clip"))
        for option in options
    ]
    assert fidelity(world, tmp_path / "r.json", *filled, base=base, encoders=("own={}/world-clip",)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith(f"debias-sd: error: {message}")
    assert not (tmp_path / "r.json").exists()
