"""What people and disks do to checkpoints: strange tensors and names, flipped bytes, an output that is the input."""

import random
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny_checkpoints import long_clip, save_folder, tiny_open_clip, tiny_transformers

from debias_sd.checkpoints.convert import convert_checkpoint
from debias_sd.checkpoints.reading import read_source


@pytest.fixture(scope="module")
def state():
    return long_clip(tiny_open_clip(length=248, quick_gelu=True))


def refused(source: Path, target: Path, **options: object) -> str:
    """Return the one sentence with which `source` is refused; nothing is written."""
    before = target.exists()
    with pytest.raises(ValueError, match=r".") as caught:
        convert_checkpoint(source, target, **options)
    sentence = str(caught.value)
    assert type(caught.value) is ValueError
    assert sentence.endswith(".")
    assert sentence.isprintable()
    assert target.exists() == before
    return sentence


def test_an_output_that_holds_the_checkpoint_is_refused_and_the_checkpoint_stays(tmp_path):
    source = tmp_path / "encoder"
    save_folder(tiny_transformers(), source)
    before = {path.name: path.read_bytes() for path in source.iterdir()}
    for given, target in ((source, source), (source / "model.safetensors", source), (source, tmp_path)):
        sentence = refused(given, target)
        assert sentence == (f"output {target} holds the checkpoint itself, which would be lost; give another folder.")
    assert {path.name: path.read_bytes() for path in source.iterdir()} == before


@pytest.mark.parametrize("kind", ["sparse", "empty", "quantised"])
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.filterwarnings("ignore:.*quantized.*deprecated")
def test_tensors_that_are_no_plain_numbers_are_named(tmp_path, state, kind):
    make = {
        "sparse": torch.Tensor.to_sparse,
        "empty": lambda tensor: tensor.to("meta"),
        "quantised": lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8),
    }[kind]
    torch.save(state | {"ln_final.weight": make(state["ln_final.weight"])}, tmp_path / "a.pt")
    sentence = refused(tmp_path / "a.pt", tmp_path / "out")
    assert f"tensor ln_final.weight of {tmp_path / 'a.pt'} is {kind} but must be plain numbers" in sentence


def test_a_state_dict_beside_other_tensors_is_found(tmp_path, state):
    torch.save({"loss": torch.tensor(1.5), "state_dict": state, "step": 3}, tmp_path / "a.pt")
    source = read_source(tmp_path / "a.pt")
    assert source.tensors.keys() == state.keys()
    assert source.beside == ("loss", "step")


def test_names_with_control_characters_are_shown_on_one_line(tmp_path, state):
    torch.save(state | {"bad\nkey\x1b[31m": torch.zeros(1)}, tmp_path / "a.pt")
    assert "holds 'bad\\nkey\\x1b[31m', which is not part of" in refused(tmp_path / "a.pt", tmp_path / "out")
    save_file({"only\nthis": torch.zeros(1)}, tmp_path / "a.safetensors")
    assert "('only\\nthis' first)" in refused(tmp_path / "a.safetensors", tmp_path / "out")


def test_a_file_without_tensors_and_a_table_of_one_row_are_refused(tmp_path, state):
    save_file({}, tmp_path / "a.safetensors")
    assert "holds no tensors by name" in refused(tmp_path / "a.safetensors", tmp_path / "out")
    tables = {name: table[:1] for name, table in state.items() if name.startswith("positional_embedding")}
    torch.save(state | tables, tmp_path / "a.pt")
    assert "1 positions" in refused(tmp_path / "a.pt", tmp_path / "out")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_flipped_bytes_give_one_sentence_or_the_tensors(tmp_path, state, suffix):
    path, rng = tmp_path / f"a{suffix}", random.Random(0)
    small = {name: tensor[:2].clone() for name, tensor in state.items() if tensor.ndim}
    torch.save(small, path) if suffix == ".pt" else save_file(small, path)
    whole, refusals = path.read_bytes(), []
    for _ in range(150):
        content = bytearray(whole)
        for _ in range(rng.choice((1, 4, 40))):
            near = rng.choice((0, len(content) - 4000, rng.randrange(len(content))))
            content[min(max(near, 0) + rng.randrange(3000), len(content) - 1)] = rng.randrange(256)
        path.write_bytes(content)
        try:
            read_source(path)
        except ValueError as error:
            refusals.append(error)
    assert len(refusals) > 20
    assert {type(error) for error in refusals} == {ValueError}  # UnicodeDecodeError is one of its kinds
    assert all(str(error).endswith(".") for error in refusals)


def test_an_empty_output_folder_is_filled(tmp_path):
    save_folder(tiny_transformers(), tmp_path / "encoder")
    (tmp_path / "out").mkdir()
    convert_checkpoint(tmp_path / "encoder", tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").is_file()
    shutil.rmtree(tmp_path / "out")
