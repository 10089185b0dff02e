"""What a file is, its content says; what is no checkpoint, damaged or code gives one sentence and runs nothing."""

import os
import pickle
import shutil
import warnings
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
from tiny_checkpoints import LAYERS, save_folder, save_safetensors, save_torchscript, tiny_open_clip, tiny_transformers

from debias_sd import cli, encoder_folder
from debias_sd.checkpoints.reading import read_source, read_torchscript

STATE = {"token_embedding.weight": torch.arange(6.0).view(3, 2), "ln_final.bias": torch.zeros(2)}


class Bomb:
    """A pickle of this creates `path` when it is read the ordinary way."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return os.mkdir, (str(self.path),)


def refused(path: Path) -> str:
    """Return the sentence, which must be one, with which `path` is refused."""
    with pytest.raises(ValueError, match=r".") as caught:
        read_source(path)
    sentence = str(caught.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence.replace(str(path), "FILE")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".ckpt", ".txt"])
@pytest.mark.parametrize("kind", ["safetensors", "torch zip", "torch pickle"])
def test_the_content_says_what_a_file_is(tmp_path, kind, suffix):
    path = tmp_path / f"model{suffix}"
    if kind == "safetensors":
        save_safetensors(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=kind == "torch zip")
    source = read_source(path)
    assert (source.format, source.name, source.beside) == (kind, path.name, ())
    assert source.tensors.keys() == STATE.keys()
    assert all(torch.equal(source.tensors[name], tensor) for name, tensor in STATE.items())
    assert len(source.sha256[path.name]) == 64


@pytest.mark.parametrize("key", ["state_dict", "model", "whatever"])
def test_a_training_checkpoint_is_unwrapped(tmp_path, key):
    """Also a float that numpy made, as older checkpoints have (case 26): a scalar type runs no code."""
    scalars = {"epoch": numpy.float64(1), "step": numpy.int64(2), "best": numpy.float32(0.5), "done": numpy.bool_(True)}
    optimizer = {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": []}
    more = {"ema": {"x": torch.zeros(1)}, key: STATE, "optimizer": optimizer, "args": None}
    torch.save(scalars | more, tmp_path / "m.pt")
    source = read_source(tmp_path / "m.pt")
    assert source.tensors.keys() == STATE.keys()
    assert source.beside == ("args", "best", "done", "ema", "epoch", "optimizer", "step")


def test_numpy_arrays_and_pickled_models_are_refused(tmp_path):
    """Only scalars: nobody keeps an array beside a state dict, and the less is allowed the better."""
    torch.save({"history": numpy.zeros(3), "state_dict": STATE}, tmp_path / "m.pt")
    assert "could run code" in refused(tmp_path / "m.pt")
    torch.save(tiny_transformers().text_model.final_layer_norm, tmp_path / "m.pt")
    assert "the Python object torch.nn.modules.normalization.LayerNorm" in refused(tmp_path / "m.pt")


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_pickle_is_refused_and_does_not_run(tmp_path, new):
    trap = tmp_path / "trap"
    torch.save(STATE | {"extra": Bomb(trap)}, tmp_path / "m.pt", _use_new_zipfile_serialization=new)
    assert refused(tmp_path / "m.pt") == (
        f"FILE is a pickle with the Python object {os.mkdir.__module__}.mkdir in it, and reading it could run code; "
        "nothing was run: save only the model's state_dict, best as safetensors, and give that file."
    )
    assert not trap.exists()
    torch.load(tmp_path / "m.pt", weights_only=False)
    assert trap.is_dir()  # the trap works


def test_code_in_a_torchscript_archive_does_not_run(tmp_path):
    trap = tmp_path / "trap"
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", pickle.dumps(Bomb(trap), protocol=2))
        archive.writestr("m/constants.pkl", b"")
        archive.writestr("m/code/__torch__.py", "raise SystemExit")
    assert f"the Python object {os.mkdir.__module__}.mkdir" in refused(tmp_path / "m.pt")
    assert not trap.exists()


def test_torchscript_gives_the_tensors_of_its_state_dict(tmp_path):
    """Scalars and other precisions included; the reference loads it with torch.jit."""
    model = tiny_open_clip()
    model.logit_bias = torch.nn.Parameter(torch.tensor([1.5, -2.0]).half())
    path = save_torchscript(model, tmp_path / "m.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        expected = torch.jit.load(str(path)).state_dict()
    found = read_torchscript(path)
    assert expected.keys() <= found.keys()
    assert sum("attn.in_proj_weight" in name for name in found) == 2 * LAYERS
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert all(found[name].dtype == tensor.dtype for name, tensor in expected.items())


def cut(path: Path, part: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * part)])


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("kind", ["safetensors", "zip", "pickle"])
def test_half_a_file(tmp_path, kind, part):
    path = tmp_path / "model"
    if kind == "safetensors":
        save_safetensors(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=kind == "zip")
    cut(path, part)
    assert "copy or download it again" in refused(path)


def test_what_is_no_checkpoint(tmp_path):
    path = tmp_path / "model.pt"
    path.touch()
    assert refused(path) == "FILE is empty (0 bytes); copy or download it again."  # case 25
    for content in (b"Weights are at https://example.org\n", b"<!DOCTYPE html>", b"\x00" * 100, b"{}"):
        path.write_bytes(content)
        assert refused(path).startswith("FILE is not a checkpoint (safetensors, torch or TorchScript)")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert refused(path).startswith("FILE is a zip archive but not a torch checkpoint")
    for content in ([STATE], {"epoch": 1}, {}, STATE["ln_final.bias"]):
        torch.save(content, path)
        assert "state_dict()" in refused(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    assert "nothing was run" in refused(path) or "not a torch checkpoint" in refused(path)


def test_folders(tmp_path):
    folder = save_folder(tiny_transformers(), tmp_path / "encoder")
    source = read_source(folder)
    assert (source.format, source.name, source.folder) == ("transformers folder", "encoder", folder)
    assert source.config["model_type"] == "clip_text_model"
    (folder / "model.safetensors").unlink()
    assert "folder encoder holds no weights (model.safetensors, pytorch_model.bin, open_clip_" in refused(folder)
    (folder / "config.json").write_text('{"model_type": "siglip"}')
    assert "model_type 'siglip', which must be 'clip' or 'clip_text_model'" in refused(folder)
    (folder / "config.json").write_text("{")
    assert "is not readable JSON" in refused(folder)
    (folder / "config.json").unlink()
    assert refused(folder).startswith("folder encoder has no config.json")
    (folder / "model_index.json").touch()
    assert "is a whole pipeline; give one of its text encoders" in refused(folder)


def test_an_index_may_name_only_files_of_its_folder(tmp_path):
    folder = save_folder(tiny_transformers(), tmp_path / "encoder")
    shutil.move(folder / "model.safetensors", tmp_path / "elsewhere.safetensors")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../elsewhere.safetensors"}}')
    assert "has no weight_map of file names" in refused(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-1.safetensors"}}')
    with pytest.raises(ValueError, match=r"model-1\.safetensors cannot be read \(No such file"):
        read_source(folder)


def test_a_hub_repository_gives_its_pickles_only_without_safetensors(tmp_path, monkeypatch):
    """A fake of the hub, and of nothing else: which files are asked for."""
    folder = save_folder(tiny_transformers(), tmp_path / "snapshot")
    asked = []
    monkeypatch.setattr(
        encoder_folder, "snapshot_download", lambda name, allow_patterns: asked.append(allow_patterns) or folder
    )
    assert read_source("someone/clip").name == "someone/clip"
    torch.save(read_source("someone/clip").tensors, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert read_source("someone/clip").sha256.keys() == {"pytorch_model.bin"}
    assert ["pytorch_model*.bin" in patterns for patterns in asked] == [False, False, False, True]


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x02.", b"\x80\x02]q\x00h\x00a.", b"\x80\x02c__torch__\nM\n)\x81}b.", b"junk"]
)
def test_damaged_torchscript_archives(tmp_path, content):
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        archive.writestr("m/data.pkl", content)
        archive.writestr("m/constants.pkl", b"")
    assert refused(tmp_path / "m.pt").startswith("FILE ")


@pytest.mark.parametrize("name", ["openai/clip-vit-large-patch14", "nowhere/file.pt", "./missing.pt", "a/b/c.pt", ""])
def test_names_that_lead_nowhere(name, tmp_path, monkeypatch, capsys):
    """A hub id without network: one sentence on standard error, no traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert cli.main(["convert", name, str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("debias-sd: error: ")
    is_id = name.count("/") == 1 and not name.startswith(".")
    assert ("was not found locally or on the Hub" in err) == is_id
    assert not (tmp_path / "out").exists()
