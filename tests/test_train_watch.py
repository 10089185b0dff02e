"""What the trainee sees: the bar, retrieval on the way and its warning, trackers, pictures, the card, the upload."""

import json
import re
import sys

import numpy as np
import pytest
import yaml
from accelerate.state import AcceleratorState
from PIL import Image

from debias_sd.preprocessing import clip_preprocessing
from tests.tiny_sets import check_ranks
from tests.tiny_world import save_tiny_clip, tiny_pipeline
from tests.train_tiny import arguments, tiny_config, tiny_settings, train_tiny
from train_encoder import heldout
from train_encoder.__main__ import main
from train_encoder.export import LEFT_BEHIND, HubFault, check_hub, push_folder
from train_encoder.heldout import read_heldout
from train_encoder.prepare import prepare
from train_encoder.watch import Watch, evaluate, fall_of_short

pytestmark = pytest.mark.usefixtures("fresh_accelerator")


@pytest.fixture
def few(monkeypatch):
    """Held-out sets that take no time."""
    monkeypatch.setattr(heldout, "FAMILIES", 3)
    monkeypatch.setattr(heldout, "SHORT", 12)


def rows_of(folder):
    return [json.loads(line) for line in (folder / "eval_log.jsonl").read_text().splitlines()]


def test_the_bar_shows_losses_temperature_and_pace(tmp_path):
    with Watch(prepare(tiny_config(tmp_path))) as watch:
        row = {"loss": 1.0, "long": 0.5, "short": 2.0, "scale": 14.3, "seconds": 0.5}
        watch._since -= 2.0
        shown = watch._shown(row)
    assert {name: shown[name] for name in ("loss", "long", "short", "scale")} == {
        "loss": "1.000", "long": "0.500", "short": "2.000", "scale": "14.3"
    }  # fmt: skip
    assert 3.5 < float(shown["images/s"]) <= 4.0  # 8 pairs in 2 seconds
    assert (watch.bar.total, watch.bar.unit) == (3, "step")


def test_retrieval_is_measured_at_the_start_and_on_the_way(base, tmp_path, few, capsys):
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "max_train_steps": 4}
    settings |= {"eval_steps": 2, "checkpointing_steps": 3}
    folder = train_tiny(tmp_path / "run", **settings)
    rows = rows_of(folder)
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert set(rows[0]) == {"step", *(f"{n}_{w}_r1" for n in ("keep", "move", "remove", "short") for w in
                                      ("t2i", "i2t"))}  # fmt: skip
    assert "step 2: R@1 t2i/i2t keep " in capsys.readouterr().out
    plain = train_tiny(tmp_path / "plain", **settings | {"eval_steps": 0})
    assert (plain / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    # A resumed run keeps the measurement of the start and drops what it makes again.
    AcceleratorState._reset_state(reset_partial_state=True)
    train_tiny(folder, **settings, resume_from_checkpoint="latest")
    assert [row["step"] for row in rows_of(folder)] == [0, 2, 4]


def test_evaluation_equals_the_librarys_own(base, tmp_path, few):
    from debias_sd.datasets.records import Faults
    from debias_sd.datasets.world import world_records
    from debias_sd.measure.embedding import Embedder, FeatureCache
    from debias_sd.measure.processes import Processes
    from debias_sd.measure.towers import load_towers

    config = tiny_config(tmp_path, recipe="short-only", pretrained_model_name_or_path=str(base))
    found = evaluate(prepare(config), read_heldout(config, clip_preprocessing(48)))
    records = world_records("world-summary", seed=0, count=12)
    one = Embedder(load_towers(base), FeatureCache(None, ""), Processes())
    features = one.pictures(records, Faults(12))[0], one.texts([record.captions[0] for record in records])
    rates = {way: {"r1": found[f"short_{way}_r1"]} for way in ("t2i", "i2t")}
    check_ranks(rates, *features, np.arange(12), few_ties=False)


def test_a_run_measures_on_pairs_of_its_own(tmp_path):
    lines = []
    for number in range(4):
        Image.new("RGB", (48, 48), (60 * number, 0, 0)).save(tmp_path / f"{number}.png")
        lines.append(json.dumps({"file_name": f"{number}.png", "text": f"A red star {number}. It is small. It glows."}))
    lines.append(json.dumps({"file_name": "none.png", "text": "A box."}))
    (tmp_path / "metadata.jsonl").write_text("\n".join(lines))
    config = tiny_config(tmp_path, eval_steps=1, eval_data=str(tmp_path / "metadata.jsonl"), eval_limit=3)
    pairs = read_heldout(config, clip_preprocessing(48))
    assert len(pairs.pictures) == 3
    assert pairs.short_texts[1] == "A red star 1."
    assert pairs.texts["remove"][1] == "It is small. It glows."
    (tmp_path / "metadata.jsonl").write_text(lines[0])
    with pytest.raises(ValueError, match="^eval_data .* has 1 usable pairs, but at least 2 are needed"):
        read_heldout(config, clip_preprocessing(48))


WRONG = {
    "missing": ("nowhere", "cannot be read: nowhere does not exist; name a file or folder of pictures with captions"),
    "unknown kind": ("jsnl:x", "cannot be read: unknown kind of data 'jsnl'; the nearest is 'jsonl'"),
    "no pictures": ("captions.jsonl", "cannot be read: captions.jsonl has 0 usable records (3 missing picture);"),
    "one pair": ("one.jsonl", "has 1 usable pairs, but at least 2 are needed"),
    "not text": ("picture.png", "cannot be read: "),
    "a folder without pictures": ("empty", "cannot be read: "),
}


@pytest.mark.parametrize(("data", "sentence"), WRONG.values(), ids=WRONG)
def test_wrong_held_out_pairs_end_in_one_sentence_before_training(tmp_path, monkeypatch, capsys, data, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "captions.jsonl").write_text(
        "".join(f'{{"file_name": "{n}.png", "text": "A box."}}\n' for n in range(3))
    )
    Image.new("RGB", (48, 48)).save("picture.png")
    (tmp_path / "one.jsonl").write_text('{"file_name": "picture.png", "text": "A box."}\n')
    assert main(arguments(tiny_settings(tmp_path / "run", eval_steps=1, eval_data=data))) == 2
    error = capsys.readouterr().err.splitlines()
    assert error[-1].startswith(f"train_encoder: eval_data {data} {sentence}")
    assert "Traceback" not in "".join(error)
    assert not (tmp_path / "run").exists()


def test_a_fall_of_short_captions_is_told_with_numbers_and_noise_is_not():
    first = {"step": 0, "short_t2i_r1": 60.0}
    told = fall_of_short(first, {"step": 9, "short_t2i_r1": 40.0}, pairs=200)
    assert "R@1 fell from 60.0 to 40.0 on 200 pairs" in told
    assert fall_of_short(first, {"step": 9, "short_t2i_r1": 54.0}, pairs=200) is None  # an error is 3.5 points
    assert fall_of_short(first, {"step": 9, "short_t2i_r1": 54.0}, pairs=20_000)
    assert fall_of_short(first, {"step": 9, "short_t2i_r1": 70.0}, pairs=200) is None


def test_the_warning_reaches_the_terminal(base, tmp_path, few, monkeypatch, capsys):
    falling = iter([90.0, 10.0])
    row = {f"{n}_{w}_r1": 50.0 for n in ("keep", "move", "remove", "short") for w in ("t2i", "i2t")}
    monkeypatch.setattr(
        "train_encoder.watch.evaluate", lambda run, _: {"step": run.step} | row | {"short_t2i_r1": next(falling)}
    )
    train_tiny(tmp_path / "run", max_train_steps=2, eval_steps=2)
    assert "warning: short captions find their pictures less often than at step 0" in capsys.readouterr().out


FAKE_TRACKIO = """
calls = []
class config(dict): pass
class Run:
    def __init__(self): self.config = {}
    def log(self, values, step=None, **kw): calls.append(("log", values, step))
    def finish(self): calls.append(("finish",))
def init(project, **kw):
    calls.append(("init", project)); return Run()
def log(values, step=None, **kw): calls.append(("log", values, step))
def finish(): calls.append(("finish",))
config = {}
"""


def test_a_tracker_of_accelerates_gets_every_step(tmp_path, few, monkeypatch):
    (tmp_path / "trackio.py").write_text(FAKE_TRACKIO)
    monkeypatch.syspath_prepend(str(tmp_path))
    train_tiny(tmp_path / "run", max_train_steps=2, eval_steps=2, report_to="trackio", tracker_project_name="mine")
    calls = sys.modules.pop("trackio").calls
    assert calls[0] == ("init", "mine")
    logged = [call for call in calls if call[0] == "log"]
    steps = [step for _, values, step in logged if "loss" in values]
    assert steps == [1, 2]
    assert any("eval/keep_t2i_r1" in values for _, values, _ in logged)
    assert calls[-1] == ("finish",)


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_that_is_not_installed_is_one_sentence(tmp_path, capsys, name):
    assert main(arguments(tiny_settings(tmp_path, report_to=f"tensorboard,{name}"))) == 2
    error = capsys.readouterr().err
    assert error == f"train_encoder: report_to is {name}, which is not installed; pip install {name}, or set none.\n"


PROMPTS = [
    "A red star, small!",
    "w" * 300,
    "a/b\\c:../../d*?",
    "🙂 ünïcode 星",
    f"{'the same first fifty characters ' * 3} one",
    f"{'the same first fifty characters ' * 3} two",
    "a zero\0byte",
]


@pytest.mark.slow  # loads a pipeline twice
def test_validation_prompts_are_drawn_with_the_encoder_as_it_is(tmp_path, monkeypatch):
    """Case 131: files are named by a hash, whatever the prompt is; the prompt stands in the picture."""
    monkeypatch.setattr("train_encoder.watch.STEPS", 2)
    tiny_pipeline().save_pretrained(tmp_path / "sd")
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(save_tiny_clip(tmp_path / "clip"))}
    settings |= {"validation_prompts": PROMPTS, "validation_pipeline": str(tmp_path / "sd")}
    folder = train_tiny(tmp_path / "run", **settings, validation_steps=1, max_train_steps=2)
    names = [sorted(path.name for path in folder.glob(f"validation/step-{step}/*")) for step in (1, 2)]
    assert names[0] == names[1]
    assert [re.fullmatch(r"(\d)-[0-9a-f]{12}\.png", name)[1] for name in names[0]] == list("0123456")
    assert len({name.split("-")[1] for name in names[0]}) == len(PROMPTS)
    found = [Image.open(folder / "validation" / "step-1" / name) for name in names[0]]
    assert {image.size for image in found} == {(48, 48)}
    assert [image.text["prompt"] for image in found] == [prompt.replace("\0", "") for prompt in PROMPTS]
    first, second = ((folder / "validation" / f"step-{step}" / names[0][0]).read_bytes() for step in (1, 2))
    assert first != second


def test_pictures_that_cannot_be_drawn_do_not_end_the_training(base, tmp_path, capsys):
    """Case 131: one sentence at each validation, and the encoder at the end."""
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(base), "validation_prompts": ["a star"]}
    settings |= {"validation_pipeline": str(tmp_path / "nowhere"), "validation_steps": 2}
    folder = train_tiny(tmp_path / "run", **settings)
    said = [
        line
        for line in capsys.readouterr().out.splitlines()
        if "warning: the pictures of step 2 are not drawn (" in line
    ]
    assert len(said) == 1
    assert said[0].endswith("); training goes on")
    assert str(tmp_path / "nowhere") in said[0]
    assert (folder / "config.json").exists()


def test_the_card_says_what_was_trained_and_measured(base, tmp_path, few):
    folder = train_tiny(tmp_path / "my-encoder", recipe="debias", pretrained_model_name_or_path=str(base), eval_steps=3)
    card = (folder / "README.md").read_text()
    head = yaml.safe_load(card.split("---")[1])
    assert head["library_name"] == "transformers"
    assert "debias" in head["tags"]
    assert "reads 248 tokens" in card
    assert "3 steps of 8 pairs (1 process(es)); short_weight 0.1" in card
    assert str(tmp_path) not in card
    assert [line.split(" |")[0] for line in card.splitlines() if line.startswith("| ")] == ["| step", "| 0", "| 3"]


class FakeHub:
    """Keeps what it is asked; in the place of huggingface_hub.HfApi."""

    asked: list = []

    def create_repo(self, name, *, exist_ok):
        from huggingface_hub import RepoUrl

        self.asked.append(("create", name, exist_ok))
        return RepoUrl(f"https://huggingface.co/someone/{name.split('/')[-1]}")

    def upload_folder(self, **options):
        self.asked.append(("upload", options))


def test_the_folder_is_uploaded_without_what_is_not_the_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    FakeHub.asked = []
    folder = train_tiny(tmp_path / "run", max_train_steps=2, push_to_hub=True, hub_model_id="someone/mine")
    assert FakeHub.asked[0] == ("create", "someone/mine", True)
    options = FakeHub.asked[1][1]
    assert (options["repo_id"], options["folder_path"]) == ("someone/mine", folder)
    assert "checkpoint-*" in options["ignore_patterns"]
    assert "uploaded to https://huggingface.co/someone/mine" in capsys.readouterr().out


def test_what_the_hub_lacks_is_said_before_and_after_training(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    assert main(arguments(tiny_settings(tmp_path, push_to_hub=True))) == 2
    assert "push_to_hub is set and nobody is logged in; run `hf auth login`" in capsys.readouterr().err
    with pytest.raises(ValueError, match="^hub_model_id 'a/b/c' is not the name of a repository"):
        check_hub("a/b/c")
    # HF_HUB_OFFLINE is on in the tests: the real client refuses, the folder stays.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubFault, match=r"could not be uploaded to mine .*; it is whole on disk: upload it later with"):
        push_folder(tmp_path, "mine")
    assert LEFT_BEHIND[0] == "checkpoint-*"
