"""Reports: written whole or not at all, made by the evaluate command, and turned into docs/results.md."""

import json
import shutil
from pathlib import Path

import pytest
from run_script import run_script
from tiny_world import save_tiny_clip, tiny_pipeline

from debias_sd.cli import main
from debias_sd.report import Report, check_writable, hash_texts, split_name, write_atomically

ROOT = Path(__file__).parent.parent


def test_a_report_comes_back_as_it_was_written_by_its_names_and_hashes(tmp_path):
    report = Report("retrieval", {"seed": 0}, {"base-s0": {"sha256": "0"}}, command="debias-sd evaluate", seconds=1.5)
    path = report.write(tmp_path / "new" / "report.json")
    assert Report.read(path) == report
    assert report.versions["torch"]
    assert [p.name for p in path.parent.iterdir()] == ["report.json"]
    assert split_name("long-clip-l0.5-f2") == ("long-clip-l0.5", "f2")
    assert split_name("my-encoder") == ("my-encoder", None)
    assert hash_texts(["a", "b"]) != hash_texts(["b", "a"])


def test_a_report_with_nan_is_not_written_and_the_old_one_stays(tmp_path):
    path = Report("retrieval", {}, {}).write(tmp_path / "report.json")
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        Report("retrieval", {"value": float("nan")}, {}).write(path)
    assert path.read_bytes() == before


def test_files_that_are_no_reports_are_named(tmp_path):
    with pytest.raises(ValueError, match="does not exist; make it with"):
        Report.read(tmp_path / "none.json")
    for content in ("not json", '{"some": "json"}', "[]"):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(ValueError, match="is not a report"):
            Report.read(tmp_path / "other.json")


def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(tmp_path):
    with pytest.raises(ValueError, match="is a folder but must be a file name"):
        check_writable(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be written to"):
        check_writable(tmp_path / "file" / "report.json")
    check_writable(tmp_path / "report.json")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]
    with pytest.raises(ValueError, match="cannot be written"):
        write_atomically(tmp_path / "file" / "report.json", b"")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Reports of tiny random encoders by the real command: two seeds of two recipes, one base."""
    root = tmp_path_factory.mktemp("reports")
    tiny_pipeline().save_pretrained(root / "sd")
    names = {"base-s0": save_tiny_clip(root / "base")}
    for seed, name in enumerate(("debias-l0.1-s0", "debias-l0.1-s1", "long-clip-l0.5-s0", "long-clip-l0.5-s1")):
        names[name] = save_tiny_clip(root / name, window=248, seed=seed)
    folder = root / "results"
    for kind in ("retrieval", "attention", "fidelity"):
        options = [f"{name}={path}" for name, path in names.items()]
        command = ["evaluate", kind, "--count", "6", "--samples", "20", "--out", str(folder / f"{kind}.json")]
        command += ["--encoder", *options]
        if kind == "fidelity":
            command += ["--base", str(root / "sd"), "--steps", "1"]
        assert main(command) == 0
    return folder


def run_results(*arguments: str | Path) -> int:
    return run_script(ROOT / "scripts" / "results.py", *arguments)


BEGIN, END = "<!-- results: written by scripts/results.py -->", "<!-- end of results -->"


@pytest.fixture(scope="module")
def documents(reports, tmp_path_factory):
    """The results document of `reports` with its plots, and a README with their table."""
    folder = tmp_path_factory.mktemp("docs")
    (folder / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert run_results("--reports", reports, "--docs", folder, "--readme", folder / "README.md") == 0
    return folder


def test_the_command_writes_every_encoder_with_its_settings(reports):
    for kind in ("retrieval", "attention", "fidelity"):
        report = Report.read(reports / f"{kind}.json")
        assert report.kind == kind
        assert report.settings["seed"] == 0
        assert all(len(result["sha256"]) == 64 for result in report.encoders.values())
    assert set(report.encoders) == {
        "base-s0",
        "base-chunked-s0",
        "base-stretched-s0",
        "base-by-sentence-s0",
        *(f"{recipe}-s{seed}" for recipe in ("debias-l0.1", "long-clip-l0.5") for seed in (0, 1)),
    }
    assert report.extra["checker_errors"]["rendered"]["missed_percent"] == 0


def test_results_are_written_from_reports_and_every_number_can_be_recomputed(reports, documents):
    text = (documents / "results.md").read_text()
    for name in ("results-probes.png", "results-attention.png", "results-places.png"):
        assert (documents / name).stat().st_size > 5000
        assert f"({name})" in text
    found = Report.read(reports / "retrieval.json").encoders
    values = [found[f"debias-l0.1-s{seed}"]["sets"]["world-twins"]["probes"]["keep"]["t2i"]["r1"] for seed in (0, 1)]
    mean, deviation = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    assert f"| DeBias-CLIP, λs 0.1 | {mean:.1f} ± {deviation:.1f} |" in text
    assert "nan" not in text.lower()
    assert "CLIP, chunked" in text
    assert text.count("**holds**") + text.count("**does not hold**") >= 10


def test_results_say_what_holds_by_the_rule(reports, tmp_path):
    report = json.loads((reports / "retrieval.json").read_text())
    for name, result in report["encoders"].items():
        value = {"debias-l0.1-s0": 80, "debias-l0.1-s1": 82, "long-clip-l0.5-s0": 70, "long-clip-l0.5-s1": 71}.get(name)
        if value is not None:
            probes = result["sets"]["world-twins"]["probes"]
            probes["keep"]["t2i"]["r1"] = value
            probes["move"]["t2i"]["r1"] = 79 if name == "debias-l0.1-s0" else 60 + 10 * int(name[-1])
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "retrieval.json").write_text(json.dumps(report))
    assert run_results("--reports", folder, "--docs", tmp_path) == 0
    text = (tmp_path / "results.md").read_text()
    assert "| R@1 T2I above: Keep | 81.0 ± 1.4 | 70.5 ± 0.7 | **holds** | |" in text.replace("|  |", "| |")
    assert "| R@1 T2I above: Move | 74.5 ± 6.4 | 65.0 ± 7.1 | **does not hold** | |" in text.replace("|  |", "| |")
    assert "| late-detail score higher | – | – | **not measured** |" in text


def test_a_second_run_has_a_section_of_its_own_and_changes_no_other_number(reports, documents, tmp_path):
    folder = tmp_path / "reports"
    shutil.copytree(reports, folder)
    shutil.copytree(reports, folder / "another-seed")
    changed = json.loads((folder / "another-seed" / "retrieval.json").read_text())
    for name, result in changed["encoders"].items():
        result["sets"]["world-twins"]["probes"]["keep"]["t2i"]["r1"] = 77.0 if name.startswith("debias") else 33.0
    (folder / "another-seed" / "retrieval.json").write_text(json.dumps(changed))
    assert run_results("--reports", folder, "--docs", tmp_path) == 0
    one, two = ((place / "results.md").read_text() for place in (documents, tmp_path))
    before, again = two.split("## Again from nothing with another seed")
    assert before == one.split("## Where the numbers come from")[0]
    assert "| R@1 T2I above: Keep | 77.0 ± 0.0 | 33.0 ± 0.0 | **holds** |" in again
    assert again.count("| retrieval.json |") == 2


def test_results_without_reports_are_refused(tmp_path, capsys):
    assert run_results("--reports", tmp_path, "--docs", tmp_path / "docs") == 2
    assert "holds no reports" in capsys.readouterr().err
    assert not (tmp_path / "docs").exists()


def test_the_readme_table_is_written_between_its_marks_and_nothing_else_changes(reports, documents, tmp_path, capsys):
    text = (documents / "README.md").read_text()
    assert text.startswith(f"before\n{BEGIN}\n| | Keep | Move |")
    assert text.endswith(f" |\n{END}\nafter\n")
    assert "old" not in text
    found = Report.read(reports / "retrieval.json").encoders
    assert f"| CLIP | {found['base-s0']['sets']['world-twins']['probes']['keep']['t2i']['r1']:.1f} |" in text
    readme = tmp_path / "README.md"
    readme.write_text("no marks")
    capsys.readouterr()
    assert run_results("--reports", reports, "--docs", tmp_path, "--readme", readme) == 2
    assert "lacks the marks" in capsys.readouterr().err
    assert readme.read_text() == "no marks"


def test_the_readme_table_is_that_of_the_reports_in_the_tree(tmp_path):
    committed = (ROOT / "README.md").read_text(encoding="utf-8")
    copy = tmp_path / "README.md"
    copy.write_text(committed, encoding="utf-8")
    assert run_results("--reports", ROOT / "results", "--docs", tmp_path, "--readme", copy) == 0
    assert copy.read_text(encoding="utf-8") == committed
    assert (tmp_path / "results.md").read_text() == (ROOT / "docs" / "results.md").read_text()
