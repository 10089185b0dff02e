"""Other ways of training on the embedded world: how they are trained, measured, compared and written down."""

import json
from pathlib import Path

import pytest
from run_script import run_script

from benchmarks import shapes_step
from debias_sd.datasets.world import PROBES, TWINS
from debias_sd.encoder_folder import WEIGHTS
from debias_sd.report import Report
from train_encoder.settings import parse_arguments

ROOT = Path(__file__).parent.parent
shipped = pytest.mark.skipif(not WEIGHTS.is_dir(), reason="debias_sd/weights is not there; make weights makes it")
QUICK = ("--max_train_steps", "2", "--train_batch_size", "4", "--lr_warmup_steps", "1", "--components", "2")
FLOAT32 = ("--mixed_precision", "no")  # bf16 takes a processor without it several times as long


@pytest.fixture
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))


def test_the_ways_differ_in_what_they_are_for_and_in_nothing_else(scripts):
    from experiments import encoders_of

    shipped_config = parse_arguments(["--config", "train_encoder/configs/shapes_debias.yaml"]).trajectory()
    found = {}
    for encoder in encoders_of("debias", 0, Path("runs")):
        config = parse_arguments(encoder.train_command()[2:])
        assert config.output_dir == f"runs/s0/{encoder.name}"
        assert config.pretrained_model_name_or_path == "runs/s0/base"
        changed = {name: v for name, v in config.trajectory().items() if v != shipped_config[name]}
        changed.pop("pretrained_model_name_or_path")
        assert (
            changed.pop("late_sentences_weight") == 0
        )  # what ships has the term since; the ways were compared without
        found[encoder.name] = (changed.pop("seed", 0), changed)
    packed, frozen = {"text_pass": "packed"}, {"text_pass": "packed", "freeze_image_tower": True}
    assert found == {
        "debias-packed-l0.1-s0": (0, packed),
        "debias-packed-l0.1-f1": (1, packed),
        "debias-packed-l0.1-f2": (2, packed),
        "debias-frozen-l0.1-s0": (0, frozen),
        "debias-frozen-l0.1-f1": (1, frozen),
        "debias-frozen-l0.1-f2": (2, frozen),
        "debias-again-l0.1-s0": (0, {}),
    }
    names = [encoder.name for encoder in encoders_of("long-clip", 5, Path("runs"))]
    assert names[0] == "long-clip-packed-l0.5-s5"
    assert names[3] == "long-clip-frozen-l0.5-f7"
    assert len(set(names)) == 7


@pytest.mark.slow
@shipped
def test_a_training_is_measured_and_not_repeated(scripts, tmp_path):
    from experiments import OTHER_WAYS, Encoder, train, write_cost

    settings = (*OTHER_WAYS["frozen"], *QUICK, *FLOAT32)
    encoder = Encoder(
        "debias-frozen-l0.1-s3", tmp_path / "run", WEIGHTS / "base", "debias", 0.1, 1.0, 0.0, 3, settings=settings
    )
    train(encoder, tmp_path / "run.log")
    write_cost(encoder, tmp_path / "training.json")
    report = Report.read(tmp_path / "training.json")
    result = report.encoders["debias-frozen-l0.1-s3"]
    assert report.kind == "training"
    assert report.settings["text_pass"] == "packed"
    assert report.settings["freeze_image_tower"] is True
    assert report.settings["max_train_steps"] == 2
    assert result["final"]["step"] == 2
    assert 1 < result["processor_seconds"] < 2 * result["wall_seconds"]
    assert 100 < result["peak_mb"] < 5000
    assert result["resumed"] is False
    before = (tmp_path / "run" / "cost.json").stat().st_mtime_ns
    train(encoder, tmp_path / "run.log")
    assert (tmp_path / "run" / "cost.json").stat().st_mtime_ns == before


@shipped
def test_the_steps_that_are_timed_do_the_same_work(tmp_path, monkeypatch, capsys):
    plain = {way: settings | {"mixed_precision": "no"} for way, settings in shapes_step.WAYS.items()}
    monkeypatch.setattr(shapes_step, "WAYS", plain)
    assert shapes_step.main(["--rounds", "1", "--batch", "4", "--out", str(tmp_path / "step.json")]) == 0
    assert "features, once" in capsys.readouterr().out
    report = Report.read(tmp_path / "step.json")
    losses = {way: result["loss"] for way, result in report.encoders.items()}
    assert set(losses) == {"grouped", "grouped, frozen", "packed", "packed, frozen"}
    # The second step is behind a first update.
    assert losses["packed"] == pytest.approx(losses["grouped"], rel=1e-3)
    assert losses["packed, frozen"] == pytest.approx(losses["grouped, frozen"], rel=1e-3)
    for result in report.encoders.values():
        assert len(result["processor_seconds"]) == len(result["batch_seconds"]) == 1
        assert result["processor_seconds"][0] > 0
    assert report.extra["features_once"]["pictures"] == 8


def test_a_step_benchmark_without_steps_is_refused(capsys):
    assert shapes_step.main(["--rounds", "0"]) == 2
    assert "--rounds must be 1 or more" in capsys.readouterr().err


def retrieval(keep: float) -> dict:
    rates = {way: {"r1": keep, "mean_rank": 1.5} for way in ("t2i", "i2t")}
    probes = ("keep", "move", "remove", "first2", "swap2", "first_only")
    sets = {name: {"probes": {"keep": rates}} for name in PROBES}
    sets[TWINS] = {"probes": {probe: rates | {"twin_percent": 50.0} for probe in probes}}
    return {"sha256": f"{keep}", "sets": sets}


@pytest.fixture
def reports(tmp_path):
    """Reports of three ways, three seeds each: packed within the spread of grouped, frozen below it."""
    folder = tmp_path / "results"
    ways = folder / "training-ways"
    values = {"": (66.0, 67.0, 68.0), "-packed": (67.0, 68.0, 69.0), "-frozen": (50.0, 51.0, 52.0)}
    for way, keeps in values.items():
        for seed, keep in enumerate(keeps):
            name = f"debias{way}-l0.1-" + ("s0" if seed == 0 else f"f{seed}")
            place = ways if way else folder
            Report("retrieval", {"seed": 0}, {name: retrieval(keep)}).write(place / f"retrieval-{name}.json")
            cost = {"sha256": name, "processor_seconds": 100.0 + seed, "peak_mb": 1000.0}
            Report("training", {"seed": seed}, {name: cost}).write(ways / f"training-{name}.json")
    again = {"debias-again-l0.1-s0": retrieval(66.0) | {"folder": "elsewhere"}}
    Report("retrieval", {"seed": 0}, again).write(ways / "retrieval-debias-again-l0.1-s0.json")
    steps = {"grouped": [2.0, 4.0, 3.0], "packed": [1.0, 1.0, 3.0], "packed, frozen": [0.5, 1.0, 1.5]}
    results = {way: {"sha256": "0", "processor_seconds": own, "batch_seconds": [0.1]} for way, own in steps.items()}
    settings = {"seed": 0, "recipe": "debias", "rounds": 3, "batch": 64}
    once = {"features_once": {"pictures": 100, "processor_seconds": 0.2}}
    Report("step", settings, results, extra=once).write(ways / "step-debias.json")
    return folder


def run_results(*arguments: str | Path) -> int:
    return run_script(ROOT / "scripts" / "results.py", *arguments)


def test_what_differs_beyond_the_spread_is_said_and_what_does_not_too(reports, tmp_path):
    docs = tmp_path / "docs"
    docs.mkdir()
    marks = "<!-- ways: written by scripts/results.py -->\nold\n<!-- end of ways -->"
    (docs / "training.md").write_text(f"before\n{marks}\nafter\n")
    assert run_results("--reports", reports, "--docs", docs) == 0
    text = (docs / "results.md").read_text()
    verdicts = "within the spread | **lower** | **lower**"
    assert f"| Keep, T2I | 67.0 ± 1.0 | 68.0 ± 1.0 | 51.0 ± 1.0 | {verdicts} |" in text
    assert "| | grouped (3) | packed (3) | frozen (3) |" in text
    assert "with today's code: the same weights, bit for bit, the same retrieval result." in text
    assert "| packed | 1.00 | 0.50 (0.25 to 1.00) | 0.100 |" in text
    assert "its features: 2.00 ms, 12.8 % of a packed step" in text
    assert "| DeBias-CLIP, frozen, λs 0.1 | 101.0 ± 1.0 | 1000.0 ± 0.0 | 3 |" in text
    assert "| late details drawn | – | – | – | not measured | not measured | not measured |" in text
    training = (docs / "training.md").read_text()
    assert training.startswith("before\n<!-- ways: written by scripts/results.py -->\n| | Keep, T2I |")
    assert "| DeBias-CLIP, λs 0.1, packed, frozen | 51.0 ± 1.0 | 51.0 ± 1.0 | 51.0 ± 1.0 | – | 3 | 0.33 |" in training
    assert "old" not in training
    assert training.endswith("\n<!-- end of ways -->\nafter\n")


def test_weights_that_differ_are_said_to_differ(reports, tmp_path):
    path = reports / "training-ways" / "retrieval-debias-again-l0.1-s0.json"
    changed = json.loads(path.read_text())
    result = changed["encoders"]["debias-again-l0.1-s0"]
    result["sha256"] = "other"
    result["sets"][TWINS]["probes"]["keep"]["i2t"]["r1"] = 1.0
    path.write_text(json.dumps(changed))
    assert run_results("--reports", reports, "--docs", tmp_path / "docs") == 0
    assert (
        "with today's code: other weights, another retrieval result." in (tmp_path / "docs" / "results.md").read_text()
    )


def test_the_table_of_the_training_document_is_that_of_the_reports_in_the_tree(tmp_path):
    committed = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    assert "<!-- ways: written by scripts/results.py -->" in committed
    (tmp_path / "training.md").write_text(committed, encoding="utf-8")
    assert run_results("--reports", ROOT / "results", "--docs", tmp_path) == 0
    assert (tmp_path / "training.md").read_text(encoding="utf-8") == committed


def test_what_the_training_document_says_of_them_is_what_was_measured(scripts):
    from reports import Reports
    from ways import COLUMNS, name_of, value_of, verdict_of

    both = Reports(Reports.read(ROOT / "results").sources + Reports.read(ROOT / "results" / "training-ways").sources)

    def columns(recipe, ours, theirs, verdict):
        values = {
            column: [value_of(both, name_of(recipe, way), column) for way in (ours, theirs)] for column in COLUMNS
        }
        return [column for column, pair in values.items() if verdict_of(*pair) == verdict]

    assert columns("debias", "packed", "grouped", "within the spread") == list(COLUMNS)
    lower = ["Remove, T2I", "short (summary), T2I", "late details drawn", "drawn past 77"]
    assert columns("debias", "frozen", "packed", "**lower**") == lower
    higher = ["Move, I2T", "Remove, I2T", "short (details_4), T2I"]
    assert columns("debias", "frozen", "packed", "**higher**") == higher
    assert columns("long-clip", "frozen", "grouped", "**lower**") == ["short (summary), T2I", "short (summary), I2T"]
    higher = ["Keep, I2T", "Move, I2T", "Remove, I2T", "short (details_4), I2T"]
    assert columns("long-clip", "frozen", "grouped", "**higher**") == higher
    text = " ".join((ROOT / "docs" / "training.md").read_text(encoding="utf-8").split())
    assert "packed differs from grouped by no more than the spread in all of them" in text
    assert "Frozen finds fewer pictures for captions without their summary" in text
