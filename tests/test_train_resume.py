"""What decides a run is compared on resume: data, start, settings, length; versions; a kill changes nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.tiny_world import save_tiny_clip
from tests.train_tiny import arguments, tiny_settings, train_tiny
from train_encoder import prepare
from train_encoder.__main__ import main
from train_encoder.run_folder import list_checkpoints
from train_encoder.step import learning_rate

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
RECORDS = 24
FEW = {"recipe": "debias", "train_batch_size": 4, "max_train_steps": 4, "checkpointing_steps": 2}


def write_data(folder, *, count=RECORDS):
    """A list with pictures of one size on disk; returns its path."""
    folder.mkdir()
    lines = []
    for number in range(count):
        Image.new("RGB", (48, 48), (10 * number, 0, 0)).save(folder / f"{number}.bmp")
        lines.append(json.dumps({"file_name": f"{number}.bmp", "text": f"A red star. Box {number}. A disc."}))
    (folder / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "metadata.jsonl"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory, one_thread):
    """A run on records, stopped at step 2 of 4, with its data and its start beside it."""
    AcceleratorState._reset_state(reset_partial_state=True)
    place = tmp_path_factory.mktemp("stopped")
    start = save_tiny_clip(place / "start")
    data = write_data(place / "data")
    settings = FEW | {"pretrained_model_name_or_path": str(start), "train_data": f"jsonl:{data}"}
    whole = train_tiny(place / "whole", **settings, checkpoints_total_limit=5)
    (place / "run").mkdir()
    (whole / "checkpoint-2").rename(place / "run" / "checkpoint-2")
    return place


def resume(stopped, tmp_path, **settings):
    """Go on in a copy of the stopped run; returns the folder and the exit code."""
    folder = shutil.copytree(stopped / "run", tmp_path / "run")
    named = {
        "pretrained_model_name_or_path": str(stopped / "start"),
        "train_data": f"jsonl:{stopped}/data/metadata.jsonl",
    }
    settings = FEW | named | settings | {"resume_from_checkpoint": "latest"}
    return folder, main(arguments(tiny_settings(folder, **settings)))


def cut(place):
    lines = (place / "data" / "metadata.jsonl").read_text().splitlines()
    (place / "data" / "metadata.jsonl").write_text("\n".join(lines[:18]))


def edit_caption(place):
    path = place / "data" / "metadata.jsonl"
    path.write_text(path.read_text().replace("Box 17.", "Box 71."))


def swap_records(place):
    lines = (place / "data" / "metadata.jsonl").read_text().splitlines()
    (place / "data" / "metadata.jsonl").write_text("\n".join([lines[1], lines[0], *lines[2:]]))


def replace_picture(place):
    Image.new("RGB", (48, 48), (1, 2, 3)).save(place / "data" / "13.bmp")  # as many bytes as before


def break_picture(place):
    (place / "data" / "13.bmp").write_bytes(b"")


def lose_picture(place):
    (place / "data" / "13.bmp").unlink()


def change_start(place):
    path = place / "start" / "model.safetensors"
    tensors = load_file(path)
    tensors["text_projection.weight"][0, 0] += 1e-6
    save_file(tensors, path, metadata={"format": "pt"})


def change_tokenizer(place):
    path = place / "start" / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["red</w>"], vocabulary["blue</w>"] = vocabulary["blue</w>"], vocabulary["red</w>"]
    path.write_text(json.dumps(content))


CHANGED = {
    "records cut": (cut, "number of records of train_data (24, now 18)"),
    "a caption edited": (edit_caption, "captions of train_data"),
    "records in another order": (swap_records, "captions of train_data, pictures of train_data"),
    "a picture replaced": (replace_picture, "pictures of train_data"),
    "a picture broken": (break_picture, "pictures of train_data"),
    "a picture lost": (lose_picture, "number of records of train_data (24, now 23)"),
    "the start trained on": (change_start, "weights of the start"),
    "the start's tokenizer": (change_tokenizer, "tokenizer of the start"),
}


@pytest.mark.parametrize(("change", "named"), CHANGED.values(), ids=CHANGED)
def test_what_was_changed_under_the_same_path_is_named(stopped, tmp_path, capsys, change, named):
    """Case 128: the settings are the same and what they name is not."""
    place = shutil.copytree(stopped, tmp_path / "place")
    saved = place / "run" / "checkpoint-2" / "state.pt"
    state = torch.load(saved, weights_only=True)
    trajectory = json.loads(state["trajectory"])  # paths moved with the copy
    trajectory |= {"pretrained_model_name_or_path": f"{place}/start"}
    torch.save(
        state | {"trajectory": json.dumps(trajectory | {"train_data": f"jsonl:{place}/data/metadata.jsonl"})}, saved
    )
    change(place)
    folder, code = resume(place, tmp_path)
    assert code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_encoder: checkpoint {folder}/checkpoint-2 belongs to a run with another {named}; give what that run "
        "had, or start anew in another output_dir."
    )
    assert [path.name for path in folder.iterdir()] == ["checkpoint-2"]


def test_data_that_was_only_copied_goes_on_to_the_same_bits(stopped, tmp_path):
    """Case 128: other times of the files say nothing of their content."""
    for path in (stopped / "data").iterdir():
        os.utime(path, (1, 1))
    folder, code = resume(stopped, tmp_path)
    assert code == 0
    left, right = (load_file(one / "model.safetensors") for one in (stopped / "whole", folder))
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_large_set_is_sampled_and_its_ends_are_among_the_sample():
    assert prepare._spread(5, 9).tolist() == [0, 1, 2, 3, 4]
    spread = prepare._spread(1_246_901, 256)
    assert (len(spread), spread[0], spread[-1]) == (256, 0, 1_246_900)
    assert set((spread[1:] - spread[:-1]).tolist()) == {4889, 4890}


def test_versions_that_changed_are_warned_of_and_stand_in_the_provenance(stopped, tmp_path, capsys):
    """Case 128: a package update loses no work, and nobody has to guess afterwards."""
    place = shutil.copytree(stopped / "run", tmp_path / "old" / "run").parent
    saved = place / "run" / "checkpoint-2" / "state.pt"
    state = torch.load(saved, weights_only=True)
    (then,) = json.loads(state["versions"])
    older = then | {"versions": then["versions"] | {"pillow": "1.0"}}
    torch.save(state | {"versions": json.dumps([older])}, saved)
    for name in ("start", "data"):
        (place / name).symlink_to(stopped / name)
    named = {"pretrained_model_name_or_path": f"{stopped}/start", "train_data": f"jsonl:{stopped}/data/metadata.jsonl"}
    folder, code = resume(place, tmp_path, **named)
    assert code == 0
    now = then["versions"]["pillow"]
    warning = (
        f"warning: going on with another pillow (1.0, now {now}): the weights may differ from an uninterrupted run's"
    )
    assert warning in capsys.readouterr().out.splitlines()
    story = json.loads((folder / "provenance.json").read_text())
    assert [(one["since"], one["versions"]["pillow"]) for one in story["resumed"]] == [(0, "1.0"), (2, now)]
    assert "resumed" not in json.loads((stopped / "whole" / "provenance.json").read_text())


def test_a_checkpoint_of_an_earlier_version_is_one_sentence(stopped, tmp_path, capsys):
    place = shutil.copytree(stopped / "run", tmp_path / "old" / "run").parent
    saved = place / "run" / "checkpoint-2" / "state.pt"
    state = torch.load(saved, weights_only=True)
    old = {name: value for name, value in json.loads(state["trajectory"]).items() if " of " not in name}
    torch.save(state | {"trajectory": json.dumps(old)}, saved)
    named = {"pretrained_model_name_or_path": f"{stopped}/start", "train_data": f"jsonl:{stopped}/data/metadata.jsonl"}
    _, code = resume(place, tmp_path, **named)
    assert code == 2
    assert "was written by an earlier version, which did not note its data and its start; " in capsys.readouterr().err


def test_a_cosine_has_one_length_and_says_so(tmp_path, capsys):
    """Case 129: neither a finished run nor one that was stopped goes on to another number of steps."""
    settings = {"max_train_steps": 4, "checkpointing_steps": 2}
    folder = train_tiny(tmp_path / "run", **settings)
    for what in (f"the finished run in {folder}", f"checkpoint {folder}/checkpoint-4"):
        again = {"max_train_steps": 8, "resume_from_checkpoint": "latest"}
        assert main(arguments(tiny_settings(folder, **settings | again))) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"train_encoder: {what} belongs to a run with another max_train_steps (4, now 8), whose learning rate "
            "falls to 0 over exactly these steps, so that no other length has its weights; train anew in another "
            "output_dir, or start there from the finished encoder."
        )
        (folder / "config.json").unlink(missing_ok=True)


def test_a_constant_rate_lets_a_finished_run_go_on(tmp_path, capsys):
    """Case 129: to the bits of the run that was that long from the start; shorter it does not get."""
    settings = {"lr_scheduler": "constant", "checkpointing_steps": 2}
    whole = train_tiny(tmp_path / "whole", **settings, max_train_steps=6)
    folder = train_tiny(tmp_path / "run", **settings, max_train_steps=3)
    again = settings | {"resume_from_checkpoint": "latest"}
    assert main(arguments(tiny_settings(folder, **again, max_train_steps=2))) == 2
    assert "has 3 steps and max_train_steps is 2; it must be 3 or more" in capsys.readouterr().err
    train_tiny(folder, **again, max_train_steps=6)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    rates = [json.loads(line)["lr"] for line in (folder / "train_log.jsonl").read_text().splitlines()]
    assert rates == [1e-3] * 6
    assert [learning_rate(n, peak=2.0, warmup=2, total=9, scheduler="constant") for n in range(4)] == [
        1.0,
        2.0,
        2.0,
        2.0,
    ]
    for checkpoint in list_checkpoints(folder):
        shutil.rmtree(checkpoint)
    assert main(arguments(tiny_settings(folder, **again, max_train_steps=8))) == 2
    assert "has 6 steps and no checkpoint to go on from to 8; name another output_dir." in capsys.readouterr().err


def test_a_kill_inside_a_checkpoint_changes_nothing(tmp_path):
    """Case 127: SIGKILL while step 4's checkpoint is written; step 2's goes on to the same bits and the same log."""
    settings = {"max_train_steps": 6, "checkpointing_steps": 2}
    whole = train_tiny(tmp_path / "whole", **settings)
    code = "import os, signal, sys, torch; from train_encoder.__main__ import main; save = torch.save\n"
    code += "def killed(state, file):\n    save(state, file)\n    file.flush()\n"
    code += "    state['step'] == 4 and os.kill(os.getpid(), signal.SIGKILL)\n"
    code += "torch.save = killed; main(sys.argv[1:])"
    folder = tmp_path / "killed"
    command = [sys.executable, "-c", code, *arguments(tiny_settings(folder, **settings))]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, env=one_thread, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert sorted(path.name for path in folder.iterdir()) == [
        ".checkpoint-4.partial",
        "checkpoint-2",
        "train_log.jsonl",
    ]
    train_tiny(folder, **settings, resume_from_checkpoint="latest")
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    logs = [
        [json.loads(line) for line in (one / "train_log.jsonl").read_text().splitlines()] for one in (whole, folder)
    ]
    assert [row | {"seconds": 0} for row in logs[0]] == [row | {"seconds": 0} for row in logs[1]]
    assert not list(folder.glob(".checkpoint-*"))


def test_a_run_killed_at_its_end_writes_what_it_would_have(tmp_path):
    """The last step's checkpoint is there, the encoder is not: the numbers of the last step come from the log."""
    settings = {"max_train_steps": 4, "checkpointing_steps": 2}
    folder = train_tiny(tmp_path / "run", **settings)
    story = json.loads((folder / "provenance.json").read_text())
    (folder / "config.json").unlink()
    train_tiny(folder, **settings, resume_from_checkpoint="latest")
    again = json.loads((folder / "provenance.json").read_text())
    assert (again["final"], again["sha256"]) == (story["final"], story["sha256"])
