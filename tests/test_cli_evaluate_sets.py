"""`debias-sd evaluate retrieval --data`: a report, the loud lines, and one sentence for a user's fault."""

import json
import os
import subprocess
import sys

import pytest
from tiny import save_clip_model, tiny_text_encoder
from tiny_sets import make_coco, make_folder, make_urban1k

from debias_sd.report import Report


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("evaluate")
    save_clip_model(root / "long", length=248)
    save_clip_model(root / "short", seed=3)
    make_folder(root / "own")
    make_coco(root / "coco")
    make_urban1k(root / "urban")
    return root


def sets(world, *arguments, kind="retrieval"):
    encoders = ("--encoder", f"long-s0={world / 'long'}", f"short-s0={world / 'short'}")
    return (kind, *encoders, "--cache", world / "cache", "--samples", 20, *arguments)


def test_a_report_has_every_set_encoder_and_probe(world, tmp_path, call):
    data = ("--data", world / "own", "--data", f"coco:{world / 'coco'}", "--data", f"urban1k:{world / 'urban'}")
    out = tmp_path / "r.json"
    code, said, err = call("evaluate", *sets(world, *data, "--probes", "hyfl", "--out", out))
    assert code == 0
    report = Report.read(out)
    assert report.kind == "retrieval"
    assert report.settings["probes"] == ["keep", "remove", "shuffle", "keep2", "keep3", "word_drop"]
    assert list(report.encoders) == ["long-s0", "short-s0"]
    for result in report.encoders.values():
        assert list(result["sets"]) == ["folder", "coco", "urban1k"]
        assert result["sets"]["coco"]["pool"] == {"images": 6, "captions": 31}
        assert list(result["sets"]["folder"]["probes"]) == report.settings["probes"]
        assert len(result["sha256"]) == len(result["content_sha256"]) == 64
    assert "coco has 6 pictures and 31 captions but published results have 5,000 pictures and 25,014 captions" in err
    assert "urban1k has 8 pictures" in err
    assert "longer than the window of short-s0: cut, the end token kept" in err
    assert said.count("R@1") == 2 * 6
    assert list(report.extra["differences"]["coco"]) == ["long-s0 - short-s0"]


def test_a_second_run_is_equal_to_the_last_digit(world, tmp_path, call):
    reports = []
    for extra in ((), (), ("--no-cache",)):
        arguments = sets(world, "--data", world / "own", "--probes", "shuffle", *extra, "--out", tmp_path / "r.json")
        assert call("evaluate", *arguments)[0] == 0
        reports.append(Report.read(tmp_path / "r.json"))
    assert reports[0].encoders == reports[1].encoders == reports[2].encoders
    assert reports[0].extra["differences"] == reports[2].extra["differences"]
    assert reports[1].extra["work"]["long-s0"]["texts"] == 0
    assert reports[2].extra["work"]["long-s0"]["texts"] == 24


def test_the_worlds_sets_are_sets_too_and_a_count_takes_the_first(world, tmp_path, call):
    data = ("--data", "world-twins", "--data", "world-details-2", "--data", world / "own")
    arguments = sets(world, *data, "--count", 4, "--out", tmp_path / "r.json")
    assert call("evaluate", *arguments)[0] == 0
    found = Report.read(tmp_path / "r.json").encoders["long-s0"]["sets"]
    assert {name: result["pool"]["images"] for name, result in found.items()} == {
        "world-twins": 4, "world-details-2": 4, "folder": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--data", "urban:x"), "unknown kind of data 'urban'; the nearest is 'urban1k'"),
        (("--data", "nowhere"), "nowhere does not exist; name a file or folder of pictures"),
        (("--probes", "swop"), "unknown probe 'swop'; the nearest is 'swap2', the groups are all, debias"),
        (("--probes", "hyfl", "--count", "2", "--samples", "0"), "--samples is 0 but must be 1 or more"),
    ],
)
def test_a_users_fault_is_one_sentence(world, tmp_path, call, arguments, sentence):
    code, _, err = call("evaluate", *sets(world, "--out", tmp_path / "r.json"), *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert sentence in err
    assert not list(tmp_path.iterdir())


def test_an_encoder_without_image_tower_is_refused_with_the_way_to_get_one(world, tmp_path, call):
    tiny_text_encoder(248).save_pretrained(tmp_path / "text")
    data = ("--data", world / "own", "--out", tmp_path / "r.json", "--no-cache")
    code, _, err = call("evaluate", "retrieval", "--encoder", f"a={tmp_path / 'text'}", *data)
    assert code == 2
    assert "or convert the checkpoint with it: debias-sd convert SRC DST --image-tower.\n" in err


@pytest.mark.parametrize(
    ("kind", "option", "sentence"),
    [
        ("attention", "--probes", "--probes is for retrieval, not for attention; leave it out."),
        ("paper", "--data", "--data is for retrieval and attention, not for paper; leave it out."),
    ],
)
def test_options_belong_to_their_kinds(world, tmp_path, call, kind, option, sentence):
    code, _, err = call("evaluate", *sets(world, option, "x", "--out", tmp_path / "r.json", kind=kind))
    assert (code, err) == (2, f"debias-sd: error: {sentence}\n")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [("retrieval", "--probes", "debias"), ("attention",)], ids=["retrieval", "attention"])
def test_several_processes_have_the_numbers_of_one(world, tmp_path, kind):
    command = [*map(str, sets(world, *kind[1:], "--data", world / "own", "--no-cache", kind=kind[0]))]
    command = ["-m", "debias_sd", "evaluate", *command, "--out"]
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--rdzv_backend", "c10d"]
    settings = {"cwd": tmp_path, "env": os.environ | {"OMP_NUM_THREADS": "1"}, "check": True}
    subprocess.run([sys.executable, *command, "one.json"], **settings)
    subprocess.run([sys.executable, *launch, "--rdzv_endpoint", "localhost:0", *command, "two.json"], **settings)
    one, two = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "two.json"))
    assert two["encoders"] == one["encoders"]
    assert two["extra"] == one["extra"]
    assert (one["settings"]["processes"], two["settings"]["processes"]) == (1, 2)
