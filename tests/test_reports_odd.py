"""Reports as users mix, edit and damage them: whole tables and pages, or one sentence."""

import json

import pytest
from tiny import save_clip_model
from tiny_sets import make_docci

from debias_sd import cli
from debias_sd.report import Report, write_atomically

ODD = ("_a$b", "x|y`z", "<b>bold</b>", "two\nlines", "größe 猫", "$\\frac{1}$")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("odd")
    save_clip_model(root / "clip", length=248)
    data = ("--data", f"docci:{make_docci(root / 'docci', count=4)}", "--samples", 5, "--cache", root / "cache")
    named = [f"{name}={root / 'clip'}" for name in ODD]
    for kind, extra in (("retrieval", ("--probes", "debias", "length")), ("attention", ())):
        arguments = ("evaluate", kind, "--encoder", *named, *data, *extra, "--out", root / f"{kind}.json")
        assert cli.main([str(argument) for argument in arguments]) == 0
    curves = {"all_layers": [0.5, 0.0, 0.1], "last_layer": [0.4, 0.1, 0.1], "captions": [1, 1, 1]}
    spread = {"places": ["1"], "mean": [0.5], "low": [None], "high": [None], "captions": [1]}
    seen = {"positions": curves, "per_token_all_layers": {"by_part": {"summary": 0.5}, "by_sentence": spread}}
    part = {"texts_sha256": "0", "attention": seen, "thing": {"change": {"by_part": {"summary": 0.5}}, "relative": {}}}
    encoders = {name: {"reading": {"world": part}, "sha256": "0" * 64} for name in ODD}
    Report("reading", {"seed": 0}, encoders).write(root / "world.json")  # as the converted reports: not all measures
    Report("step", {"seed": 0}, {"a": {"late_detail": 1.0, "floor": {"late_detail": None}}}).write(root / "f.json")
    return root


def test_reports_of_all_kinds_and_encoders_of_odd_names_make_one_page(world, tmp_path, call):
    reports = [world / name for name in ("retrieval.json", "attention.json", "world.json", "f.json")]
    code, out, err = call("report", *reports, "--html", tmp_path / "p.html", "--plots", tmp_path / "plots")
    assert (code, err) == (0, "")
    for section in ("docci, text to image", "docci: what is read, by sentence", "world: what is read", "### step"):
        assert section in out
    rows = [line for line in out.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)
    assert any("two lines" in line for line in rows)
    page = (tmp_path / "p.html").read_text()
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page
    assert (tmp_path / "plots" / "world-attention-position.png").is_file()
    assert (tmp_path / "plots" / "docci-length-t2i.png").is_file()


def test_the_effective_length_is_a_table_and_the_same_report_twice_is_one_sentence(world, call):
    _, out, _ = call("report", world / "retrieval.json")
    section = out.split("### docci, text to image: R@1 under each probe")[1].split("###")[0]
    found = Report.read(world / "retrieval.json").encoders["_a$b"]["sets"]["docci"]["probes"]
    for name in (f"words{count}" for count in range(10, 70, 10)):
        assert f"| {name} | {found[name]['t2i']['r1']:.2f} |" in section
    code, _, err = call("report", world / "f.json", world / "f.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "two reports give a (f); rename one of the files, or give each only once." in err


def _without_sets(report):
    for result in report["encoders"].values():
        del result["sets"]


def _list_of_encoders(report):
    report["encoders"] = list(report["encoders"])


def _probes_of_text(report):
    for result in report["encoders"].values():
        result["sets"]["docci"]["probes"]["keep"] = "none"


@pytest.mark.parametrize("edit", [_without_sets, _list_of_encoders, _probes_of_text])
def test_an_edited_report_is_one_sentence_and_nothing_is_written(world, tmp_path, call, edit):
    content = json.loads((world / "retrieval.json").read_text())
    edit(content)
    (tmp_path / "r.json").write_text(json.dumps(content))
    code, _, err = call("report", tmp_path / "r.json", "--html", tmp_path / "p.html")
    assert (code, err.count("\n")) == (2, 1)
    assert "it was edited or is of another version; measure again." in err
    assert not (tmp_path / "p.html").exists()


@pytest.mark.parametrize("content", ["[" * 100_000, "[]", '{"kind": 1}', "", "\ufeff{}", "\0"])
def test_what_is_no_report_is_one_sentence(tmp_path, call, content):
    (tmp_path / "r.json").write_text(content)
    code, _, err = call("report", tmp_path / "r.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "r.json is not a report of `debias-sd evaluate`; make it again." in err
    code, _, err = call("report", tmp_path)
    assert (code, "cannot be read (Is a directory)" in err) == (2, True)


def test_a_long_name_is_written_whole_too(tmp_path):
    name = "é" * 125 + ".json"
    assert write_atomically(tmp_path / name, b"x").read_bytes() == b"x"
    assert [path.name for path in tmp_path.iterdir()] == [name]
