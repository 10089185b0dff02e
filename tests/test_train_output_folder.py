"""The folder of a run: what was finished there stays, unless it is asked to be overwritten."""

import json
import shutil

import pytest
from accelerate.state import AcceleratorState

from tests.tiny_world import save_tiny_clip
from tests.train_tiny import arguments, tiny_settings, train_tiny
from train_encoder.__main__ import main
from train_encoder.run_folder import list_checkpoints

pytestmark = pytest.mark.usefixtures("fresh_accelerator")
SETTINGS = {"max_train_steps": 4, "checkpointing_steps": 2, "report_to": "tensorboard"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    AcceleratorState._reset_state(reset_partial_state=True)
    return train_tiny(tmp_path_factory.mktemp("finished") / "run", **SETTINGS)


@pytest.fixture
def folder(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def content_of(folder):
    """Every file with its bytes and its time."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def start(folder, **settings):
    return main(arguments(tiny_settings(folder, **SETTINGS | settings)))


def test_the_same_command_again_is_refused_and_resume_says_that_it_is_finished(folder, capsys):
    """Case 129: a finished run is not overwritten unasked, with checkpoints in its folder or without."""
    for checkpoint in (*list_checkpoints(folder), None):
        before = content_of(folder)
        assert start(folder) == 2
        assert capsys.readouterr().err == (
            f"train_encoder: output_dir {folder} has a finished run; name another output_dir, or delete that run and "
            "train anew with --overwrite_output_dir.\n"
        )
        assert content_of(folder) == before
        if checkpoint:
            shutil.rmtree(checkpoint)
    # Case 129: `--resume_from_checkpoint latest` on a finished run ends well and touches nothing.
    for checkpoint in (*list_checkpoints(folder), None):
        before = content_of(folder)
        assert start(folder, resume_from_checkpoint="latest") == 0
        assert capsys.readouterr().out == f"the run in {folder} is finished (4 steps); everything is left as it is\n"
        assert content_of(folder) == before
        if checkpoint:
            shutil.rmtree(checkpoint)
    assert start(folder, resume_from_checkpoint="latest", seed=3) == 2
    assert f"the finished run in {folder} belongs to a run with another seed (0, now 3);" in capsys.readouterr().err
    assert content_of(folder) == before


def test_overwriting_deletes_what_the_run_wrote_and_nothing_else(folder, capsys):
    """Case 129: `--overwrite_output_dir`, the bare flag; other people's files and folders stay."""
    (folder / "notes.txt").write_text("mine")
    (folder / "checkpoint-7").mkdir()
    (folder / "checkpoint-7" / "optimizer.bin").write_text("of another library")
    (folder / "validation" / "step-9").mkdir(parents=True)
    command = arguments(tiny_settings(folder, **SETTINGS | {"max_train_steps": 3, "lr_warmup_steps": 0, "seed": 1}))
    assert main([*command, "--overwrite_output_dir"]) == 0
    assert (folder / "notes.txt").read_text() == "mine"
    assert (folder / "checkpoint-7" / "optimizer.bin").exists()
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-2"]
    assert not list(folder.glob("validation/*"))
    assert len(list(folder.glob("tensorboard/*"))) == 1
    story = json.loads((folder / "provenance.json").read_text())
    assert (story["config"]["seed"], story["final"]["step"]) == (1, 3)
    assert len((folder / "train_log.jsonl").read_text().splitlines()) == 3


def test_a_wrong_setting_deletes_nothing_and_to_overwrite_and_resume_are_two_wishes(folder, capsys):
    """Case 129: what is overwritten goes when everything else is known to be there."""
    before = content_of(folder)
    settings = {"pretrained_model_name_or_path": str(folder.parent / "nowhere"), "recipe": "debias"}
    assert start(folder, overwrite_output_dir=True, **settings) == 2
    assert "does not exist" in capsys.readouterr().err
    assert content_of(folder) == before
    assert start(folder, overwrite_output_dir=True, resume_from_checkpoint="latest") == 2
    assert capsys.readouterr().err == (
        "train_encoder: overwrite_output_dir deletes what resume_from_checkpoint goes on from; set one of the two.\n"
    )


def test_a_run_that_was_stopped_is_overwritten_when_asked(folder, capsys):
    """Case 129: its checkpoints go too; without the flag they are named."""
    (folder / "config.json").unlink()
    assert start(folder) == 2
    assert "has checkpoint-4 of an earlier run and this one starts at step 0; " in capsys.readouterr().err
    assert start(folder, overwrite_output_dir=True, max_train_steps=2) == 0
    assert [path.name for path in list_checkpoints(folder)] == ["checkpoint-2"]


@pytest.mark.parametrize("asked", [{}, {"overwrite_output_dir": True}, {"resume_from_checkpoint": "latest"}])
def test_a_model_of_other_origin_is_never_overwritten(tmp_path, capsys, asked):
    """Case 129: an encoder folder that this trainer did not write, whatever is asked."""
    folder = save_tiny_clip(tmp_path / "clip")
    before = content_of(folder)
    assert start(folder, **asked) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"train_encoder: output_dir {folder} has a model that train_encoder did not write and does not overwrite; "
        "name another output_dir."
    )
    assert content_of(folder) == before


@pytest.mark.parametrize("asked", [{}, {"overwrite_output_dir": True}, {"resume_from_checkpoint": "latest"}])
def test_a_run_does_not_write_over_its_own_start(folder, capsys, asked):
    """Case 129: the pretrained model's folder as output_dir, by another spelling of its path too."""
    before = content_of(folder)
    settings = {"recipe": "debias", "pretrained_model_name_or_path": str(folder / ".." / folder.name)}
    assert start(folder, **settings, **asked) == 2
    assert f"output_dir {folder} is the folder of the pretrained model; name another" in capsys.readouterr().err
    assert content_of(folder) == before
