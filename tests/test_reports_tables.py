"""Reports side by side: every number from the JSON, published rows beside ours, one page that needs nothing else."""

import base64
import html
import io
import json
import re
import sys

import pytest
from PIL import Image
from tiny import save_clip_model
from tiny_sets import make_coco, make_docci, make_urban1k

from debias_sd import cli
from debias_sd.measure.reports.retrieval import published_tables, published_value
from debias_sd.report import Report


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("reports")
    for seed, name in enumerate(("debias", "other")):
        save_clip_model(root / name, length=248, seed=seed)
    make_docci(root / "data" / "docci")
    make_urban1k(root / "data" / "Urban1k")
    make_coco(root / "data" / "coco")
    encoders = ("--encoder", f"debias-b16-s0={root / 'debias'}", f"mine={root / 'other'}")
    command = ("evaluate", "retrieval", *encoders, "--data", f"docci:{root / 'data' / 'docci'}", "--probes", "all")
    options = ("--cache", root / "cache", "--samples", 20)
    assert cli.main([str(part) for part in (*command, *options, "--out", root / "a.json")]) == 0
    return root


def rows_of(markdown: str, title: str) -> list[list[str]]:
    section = markdown.split(f"### {title}\n")[1].split("\n###")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_published_numbers_are_those_of_the_data_file():
    assert published_value("debias-b16", "docci", "move", "t2i") == 76.68
    assert published_value("debias-b16-s1", "urban1k", "keep", "i2t") == 93.1
    assert published_value("siglip2-b16", "docci", "photo5", "t2i") == 47.94
    assert published_value("mine", "docci", "keep", "t2i") is None
    assert published_value("clip-b16", "coco", "keep", "i2t") is None
    assert [len(table.rows) for table in published_tables()] == [10, 8, 4, 5]
    assert all(0 < value < 100 for table in published_tables() for row in table.rows for value in row.values.values())


def test_markdown_has_the_numbers_of_the_report(world, call):
    code, text, _ = call("report", world / "a.json")
    assert code == 0
    found = Report.read(world / "a.json").encoders["mine"]["sets"]["docci"]["probes"]
    head, ours, mine = rows_of(text, "docci, text to image")
    assert head[1:] == ["R@1", "95 %", "R@5", "R@10", "median rank", "mean rank"]
    low, high = found["keep"]["t2i"]["intervals"]["r1"]
    assert mine[:3] == ["mine", f"{found['keep']['t2i']['r1']:.2f}", f"{low:.2f} to {high:.2f}"]
    by_probe = {row[0]: row[1:] for row in rows_of(text, "docci, image to text: R@1 under each probe")}
    assert by_probe["probe"] == ["debias-b16-s0", "mine"]
    assert by_probe["shuffle"][1] == f"{found['shuffle']['i2t']['r1']:.2f}"
    assert {"photo5", "words10", "swap2", "word_drop"} <= set(by_probe)
    assert "published results have 5,000 pictures" in text


def test_ours_stand_beside_the_published_rows_with_the_difference(world, call):
    _, text, _ = call("report", world / "a.json")
    rows = {row[0]: row[1:] for row in rows_of(text, "Robustness on DOCCI: Keep, Move, Remove, text to image")}
    assert rows["DeBias-CLIP B/16"] == ["79.96", "76.68", "66.7"]
    ours = [float(cell) for cell in rows["**debias-b16-s0**"]]
    assert rows["debias-b16-s0 - published"][1] == f"{ours[1] - 76.68:+.2f}"
    assert "**mine**" in rows
    assert "mine - published" not in rows
    assert "In bold: measured here. **Not the published pool: docci.**" in text


def test_two_reports_are_compared_and_encoders_of_one_name_told_apart(world, tmp_path, call):
    content = json.loads((world / "a.json").read_text())
    content["encoders"]["mine"]["sets"]["docci"]["texts_sha256"] = "0"
    (tmp_path / "b.json").write_text(json.dumps(content))
    _, text, _ = call("report", world / "a.json", tmp_path / "b.json")
    labels = [row[0] for row in rows_of(text, "docci, text to image")]
    assert labels == ["", "debias-b16-s0 (a)", "mine (a)", "debias-b16-s0 (b)", "mine (b)"]
    assert "measured on different captions: these rows cannot be compared" in text
    content["encoders"]["mine"]["sets"]["docci"]["pictures_sha256"] = "0"
    (tmp_path / "b.json").write_text(json.dumps(content))
    _, text, _ = call("report", world / "a.json", tmp_path / "b.json")
    assert "measured on different captions and pictures: these rows cannot be compared" in text
    del content["encoders"]["debias-b16-s0"]["sets"]["docci"]["pictures_sha256"]  # a report of an older version
    content["encoders"] = {"debias-b16-s0": content["encoders"]["debias-b16-s0"]}
    (tmp_path / "b.json").write_text(json.dumps(content))
    _, text, _ = call("report", world / "a.json", tmp_path / "b.json")
    assert "were measured on different" not in text
    code, _, err = call("report", world / "a.json", world / "a.json")
    assert (code, "two reports give debias-b16-s0 (a); rename one" in err) == (2, True)


def test_other_kinds_show_their_numbers(tmp_path, call):
    for name, score in (("a", 50.0), ("b", 61.25)):
        result = {"late_detail": score, "floor": {"late_detail": None}, "parts": {"colour": 1}, "list": [1, 2]}
        Report("speed", {"seed": 0}, {f"{name}-s0": result}).write(tmp_path / f"{name}.json")
    _, text, _ = call("report", tmp_path / "a.json", tmp_path / "b.json")
    assert rows_of(text, "speed") == [["", "a-s0", "b-s0"], ["late_detail", "50", "61.25"], ["parts colour", "1", "1"]]


def test_the_page_needs_nothing_beside_it_and_has_every_plot(world, tmp_path, call):
    page = tmp_path / "page.html"
    assert call("report", world / "a.json", "--html", page, "--plots", tmp_path / "plots")[0] == 0
    text = page.read_text()
    assert not re.search(r"""(src|href)=["'](?!data:)""", text)
    assert "<script" not in text
    names = sorted(path.name for path in (tmp_path / "plots").iterdir())
    assert names == sorted(
        f"docci-{p}-{w}.png" for p in ("debias", "hyfl", "padding", "pads", "length") for w in ("t2i", "i2t")
    )
    assert text.count("data:image/png;base64,") == len(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in (tmp_path / "plots").iterdir())
    assert text.count("<table>") == text.count("</table>") >= 6
    assert "<strong>mine</strong>" in text


def test_names_are_text_on_the_page(tmp_path, call):
    Report("speed", {"seed": 0}, {"<b>x</b>": {"late": 1.0}}).write(tmp_path / "a.json")
    assert call("report", tmp_path / "a.json", "--html", tmp_path / "p.html")[0] == 0
    assert "&lt;b&gt;x&lt;/b&gt;" in (tmp_path / "p.html").read_text()


def test_without_matplotlib_plots_are_one_sentence_and_the_page_is_written(world, tmp_path, call, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    code, _, err = call("report", world / "a.json", "--plots", tmp_path / "plots")
    assert (code, err) == (
        2, "debias-sd: error: plots need matplotlib, which is not installed; install it: pip install matplotlib.\n",
    )  # fmt: skip
    code, _, err = call("report", world / "a.json", "--html", tmp_path / "page.html")
    assert (code, "warning: plots need matplotlib" in err) == (0, True)
    assert "<table>" in (tmp_path / "page.html").read_text()


def test_paper_measures_what_is_there_and_names_the_rest(world, tmp_path, call):
    encoder = ("--encoder", f"debias-b16-s0={world / 'debias'}", "--cache", world / "cache", "--samples", 5)
    out = tmp_path / "paper.json"
    code, text, err = call("evaluate", "paper", *encoder, "--data-root", world / "data", "--out", out)
    assert code == 0
    report = Report.read(out)
    sets = report.encoders["debias-b16-s0"]["sets"]
    assert sorted(sets) == ["coco", "docci", "urban1k"]
    assert {"move", "photo5"} <= set(sets["docci"]["probes"])
    assert list(sets["coco"]["probes"]) == ["keep"]
    assert sorted(report.extra["missing"]) == ["dci", "flickr30k", "flickr30k-test", "long-dci", "sharegpt4v-1k"]
    assert "warning: dci was not measured: not found; get it from https://github.com/facebookresearch/DCI" in err
    rows = {row[0]: row[1:] for row in rows_of(text, "Retrieval, long and short captions, text to image")}
    assert rows[""] == ["urban1k keep", "docci keep", "coco keep"]
    assert "debias-b16-s0 - published" in rows
    code, _, err = call("evaluate", "paper", *encoder, "--data-root", tmp_path, "--out", tmp_path / "no.json")
    assert code == 2
    assert "holds none of urban1k, dci" in err
    code, _, err = call("evaluate", "paper", *encoder, "--out", tmp_path / "no.json")
    assert "--data-root is not set" in err


def test_the_page_shows_the_captions_that_an_encoder_fails_on(world, tmp_path, call):
    code, _, _ = call("report", world / "a.json", "--html", tmp_path / "p.html")
    assert code == 0
    report, page = Report.read(world / "a.json"), (tmp_path / "p.html").read_text()
    examples = report.encoders["mine"]["sets"]["docci"]["examples"]
    assert [one["rank"] for one in examples] == sorted((one["rank"] for one in examples), reverse=True)
    assert 1 < examples[0]["rank"] == max(one["rank"] for one in examples)
    assert all(one["first"] != one["picture"] for one in examples)
    assert "docci: captions that mine fails on" in page
    assert f"its own, rank {examples[0]['rank']}" in page
    assert html.escape(examples[0]["caption"]) in page
    pictures = report.extra["pictures"]["docci"]
    assert {int(name) for name in pictures} >= {one[key] for one in examples for key in ("picture", "first")}
    shown = re.findall(r"data:image/jpeg;base64,([^\"]+)", page)
    assert set(shown) == set(pictures.values())
    with Image.open(io.BytesIO(base64.b64decode(shown[0]))) as picture:
        assert picture.size == (48, 32)


def test_what_is_no_picture_gets_into_no_address(world, tmp_path, call):
    content = json.loads((world / "a.json").read_text())
    content["extra"]["pictures"]["docci"] = dict.fromkeys(content["extra"]["pictures"]["docci"], '"><script>1</script>')
    (tmp_path / "b.json").write_text(json.dumps(content))
    assert call("report", tmp_path / "b.json", "--html", tmp_path / "p.html")[0] == 0
    assert "<script" not in (tmp_path / "p.html").read_text()
    assert "data:image/jpeg" not in (tmp_path / "p.html").read_text()
