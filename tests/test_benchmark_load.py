"""The benchmark of data loading: its list is ShareGPT4V's, its ratios are its rates', its faults one sentence."""

import json

import pytest
from PIL import Image

from benchmarks import load_data
from debias_sd.datasets.names import open_records

pytestmark = pytest.mark.usefixtures("fresh_accelerator")


@pytest.fixture
def files(tmp_path):
    """Captions of 5 sentences, and the report of a step."""
    texts = [" ".join(f"Picture {number} shows thing {place}." for place in range(5)) for number in range(6)]
    (tmp_path / "texts.jsonl").write_text("\n".join(json.dumps({"caption": text}) for text in texts))
    (tmp_path / "step.json").write_text(json.dumps({"images_per_second": {"ours": 0.5, "frozen": 2.0}}))
    return tmp_path


def test_the_list_has_the_form_of_sharegpt4v(files):
    path = load_data.write_set(files, ["One. Two."], records=3, width=640, height=480)
    records = open_records(f"sharegpt4v:{path}", skip_missing=True)
    assert (len(records), records.left_out) == (3, {"held out": 1000})
    assert records[2].captions == ("One. Two.",)
    with Image.open(records[2].image) as image:
        assert (image.format, image.size, image.mode) == ("JPEG", (640, 480), "RGB")
    assert 50_000 < records[2].image.stat().st_size < 150_000  # a photograph's


def test_rates_are_compared_with_the_steps(files, capsys):
    arguments = ["--batch", "4", "--batches", "4", "--workers", "1", "--captions", "6", "--rounds", "2"]
    arguments += ["--width", "64", "--height", "48", "--texts", str(files / "texts.jsonl")]
    arguments += ["--step", str(files / "step.json"), "--out", str(files / "report.json")]
    assert load_data.main(arguments) == 0
    report = json.loads((files / "report.json").read_text())
    for kind, step in (("pictures", 0.5), ("kept_features", 2.0)):
        rate = report["rates"][kind]
        assert rate["images"] == 8  # four batches, without the worker's first and the one that starts the clock
        assert rate["images_per_second"] > 0
        assert 0 < rate["milliseconds_of_a_pair"] < 1000
        assert report["times_the_step"][kind] == pytest.approx(rate["images_per_second"] / step)
        assert report["captions_per_second"][kind] == pytest.approx(2 * rate["images_per_second"])
    found = report["augmentation_us"]
    assert found["whole"] == pytest.approx(found["text"] + found["pads"])
    assert report["met"]["augmentation_us"] == (found["whole"] < 100)
    said = capsys.readouterr().out
    assert "  goals: times_the_step " in said
    assert f"{report['times_the_step']['pictures']:.1f} times the step's 0.50" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "/no/such"], "/no/such is not a report of benchmarks/train_step.py"),
        (["--batches", "3"], "--batches must exceed --workers by 2"),
        (["--texts", "/no/such"], "file /no/such does not exist"),
    ],
)
def test_faults_are_one_sentence(files, arguments, message, capsys):
    assert load_data.main(["--step", str(files / "step.json"), "--captions", "6", *arguments]) == 2
    assert message in capsys.readouterr().err
