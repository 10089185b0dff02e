"""What a file of weights is, its content says: for bases, encoders, `convert` and the trainer alike."""

import json
import os
import pickle
import random
import shutil
import zipfile

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import save_clip_model, tiny_encoder, tiny_sd_pipeline
from tiny_single_files import original_naming
from train_tiny import tiny_config

from debias_sd import TextEncoder, convert_checkpoint, load_debias_pipeline, load_encoder
from debias_sd.weight_files import check_weights
from train_encoder.model.bases import load_start


class Hostile:
    """Unpickled, it would call os.system."""

    def __reduce__(self):
        return os.system, ("exit 3",)


def state_of(folder):
    """The tensors, copied: the file that they are mapped from is written over."""
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A `CLIPModel` folder of 248 positions, a pipeline's folder and its single file's tensors."""
    folder = tmp_path_factory.mktemp("whole")
    save_clip_model(folder / "clip", length=248)
    base = tiny_sd_pipeline()
    base.save_pretrained(folder / "base")
    state = {name: tensor.contiguous() for name, tensor in original_naming(base).items()}
    save_file(state, folder / "base.safetensors")
    torch.save({"state_dict": state, "epoch": 3}, folder / "base.ckpt")
    return folder


def hostile_zip(path):
    torch.save({"state_dict": {"a": Hostile()}}, path)


def hostile_pickle(path):
    path.write_bytes(pickle.dumps({"a": Hostile()}))


def zip_of_text(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme.txt", "hello")


FAULTY = {
    "hostile zip": (
        hostile_zip,
        "is a pickle with the Python object posix.system in it, and reading it could",
    ),
    "hostile pickle": (hostile_pickle, "is a pickle with .* in it, and reading it could run code"),
    "gguf": (
        lambda path: path.write_bytes(b"GGUF\x03\0\0\0" + bytes(99)),
        "but a GGUF file, whose weights are",
    ),
    "lfs": (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\noid"), "but a git-LFS pointer"),
    "html": (lambda path: path.write_text("\n<!DOCTYPE html><html></html>"), "but a web page under the name of a file"),
    "json": (lambda path: path.write_text('{\n  "metadata": {}, "weight_map": {}}'), "but JSON text, which holds no"),
    "gzip": (lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(99)), "but a compressed archive; unpack it"),
    "zip": (zip_of_text, "is a zip archive but not a torch checkpoint; unpack it"),
    "zeros": (lambda path: path.write_bytes(bytes(5000)), "but only zeros, as an interrupted download leaves them"),
    "empty": (lambda path: path.write_bytes(b""), "is empty .0 bytes.; copy or download it again"),
    "picture": (lambda path: path.write_bytes(b"\x89PNG\r\n" + bytes(99)), "is not a checkpoint .safetensors, torch"),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_what_is_not_weights_is_told_alike_by_every_reader(whole, tmp_path, fault):
    """Cases 123 and 132: under each suffix and in each place; no advice to convert what convert refuses."""
    write, sentence = FAULTY[fault]
    for suffix in (".safetensors", ".ckpt", ".bin"):
        write(tmp_path / f"a{suffix}")
    for suffix, name in ((".safetensors", "model.safetensors"), (".bin", "pytorch_model.bin")):
        folder = tmp_path / name
        shutil.copytree(whole / "clip", folder)
        (folder / "model.safetensors").unlink()
        write(folder / name)
        base = tmp_path / f"base{suffix}"
        shutil.copytree(whole / "base", base)
        (base / "text_encoder" / "model.safetensors").unlink()
        write(base / "text_encoder" / name)
    start = {"output_dir": str(tmp_path / "run")}
    uses = [
        *(lambda s=s: convert_checkpoint(tmp_path / f"a{s}", tmp_path / "out") for s in (".safetensors", ".ckpt")),
        *(lambda s=s: load_debias_pipeline(tmp_path / f"a{s}", "stretched") for s in (".safetensors", ".ckpt", ".bin")),
        *(lambda n=n: load_encoder(tmp_path / n) for n in ("model.safetensors", "pytorch_model.bin")),
        *(lambda n=n: convert_checkpoint(tmp_path / n, tmp_path / "out") for n in ("pytorch_model.bin",)),
        *(lambda s=s: load_debias_pipeline(tmp_path / f"base{s}", "stretched") for s in (".safetensors", ".bin")),
        *(
            lambda n=n: load_start(tiny_config(tmp_path, pretrained_model_name_or_path=str(tmp_path / n), **start))
            for n in ("a.ckpt", "model.safetensors", "pytorch_model.bin")
        ),
    ]
    for use in uses:
        with pytest.raises(ValueError, match=sentence) as caught:
            use()
        told = str(caught.value)
        assert type(caught.value) is ValueError
        assert told.isprintable()
        assert "debias-sd convert" not in told
    assert not (tmp_path / "out").exists()


def test_a_base_of_any_name_is_read_by_its_content(whole, tmp_path):
    """Case 123: a .ckpt that is safetensors, a pickle named .safetensors, and neither suffix."""
    wanted = load_file(whole / "base" / "unet" / "diffusion_pytorch_model.safetensors")
    for source, name in (("base.safetensors", "a.ckpt"), ("base.ckpt", "b.safetensors"), ("base.safetensors", "c.bin")):
        shutil.copyfile(whole / source, tmp_path / name)
        pipe = load_debias_pipeline(tmp_path / name, "stretched", config=str(whole / "base"))
        found = pipe.unet.state_dict()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        assert pipe.tokenizer.model_max_length == 248


def as_pickle(folder, state):
    torch.save(state, folder / "model.safetensors")


def as_bin(folder, state):
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)


def as_bin_of_safetensors(folder, state):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def as_shards(folder, state, *, suffix=".bin", stem="pytorch_model", save=torch.save):
    (folder / "model.safetensors").unlink()
    names = sorted(state)
    places = {name: f"{stem}-0000{1 + index % 2}-of-00002{suffix}" for index, name in enumerate(names)}
    for place in set(places.values()):
        save({name: state[name] for name in names if places[name] == place}, folder / place)
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps({"weight_map": places}))


def as_safe_shards(folder, state):
    as_shards(folder, state, suffix=".safetensors", stem="model", save=save_file)


def as_variant(folder, state):
    (folder / "model.safetensors").rename(folder / "model.fp16.safetensors")


@pytest.mark.parametrize("write", [as_pickle, as_bin, as_bin_of_safetensors, as_shards, as_safe_shards, as_variant])
def test_an_encoder_folder_is_read_whatever_its_weights_are_written_as(whole, tmp_path, write):
    """Case 123: pickles, shards of both kinds, a variant; the same tensors, by the loader and by convert."""
    shutil.copytree(whole / "clip", tmp_path / "clip")
    wanted = load_encoder(whole / "clip")
    write(tmp_path / "clip", state_of(tmp_path / "clip"))
    found = load_encoder(tmp_path / "clip")
    for name, tensor in wanted.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], tensor)
    assert torch.equal(found.projection, wanted.projection)
    if write is not as_variant:
        convert_checkpoint(tmp_path / "clip", tmp_path / "out")
        assert torch.equal(TextEncoder.load(tmp_path / "out").projection, wanted.projection)


def test_the_cause_of_another_library_is_shown_whole(whole, tmp_path):
    """Case 123: a folder with a pipeline's own code, without trust_remote_code, is not called damaged."""
    shutil.copytree(whole / "base", tmp_path / "base")
    (tmp_path / "base" / "pipeline.py").write_text("raise SystemExit('this was run')\n")
    with pytest.raises(ValueError, match="has code of its own, which is run only where you say so") as caught:
        load_debias_pipeline(tmp_path / "base", "stretched", custom_pipeline=str(tmp_path / "base"))
    assert "trust_remote_code=True" in str(caught.value)
    assert "copy" not in str(caught.value)


@pytest.mark.parametrize("kind", ["torch zip", "torch pickle", "safetensors"])
def test_flipped_bytes_never_end_in_a_traceback(tmp_path, kind):
    """Case 132: a file with bytes changed is read or refused by one sentence."""
    rng, path = random.Random(1), tmp_path / "a.bin"
    state = {f"layer.{index}.weight": torch.randn(3, 2) for index in range(4)}
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, _use_new_zipfile_serialization=kind == "torch zip")
    whole, refusals = path.read_bytes(), []
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 3, 30))):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.choice((len(content), rng.randrange(len(content))))])
        try:
            check_weights(path)
        except ValueError as error:
            refusals.append(error)
    assert len(refusals) > 50
    assert {type(error) for error in refusals} == {ValueError}
    assert all(str(error).endswith(".") and str(error).isprintable() for error in refusals)


def test_an_encoder_whose_training_file_is_hostile_is_given_to_a_pipeline(whole, tmp_path):
    """Case 132: the encoder of a pipeline too, before the base is loaded or after."""
    tiny_encoder().save(tmp_path / "encoder")
    hostile_zip(tmp_path / "encoder" / "model.safetensors")
    with pytest.raises(ValueError, match="is a pickle with the Python object posix.system in it"):
        load_debias_pipeline(whole / "base", tmp_path / "encoder")
