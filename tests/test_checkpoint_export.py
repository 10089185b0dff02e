"""What export writes is whole or not there, and `debias-sd export` says what it wrote."""

import pytest
from safetensors.torch import load_file, save_file

from debias_sd.checkpoints import export
from debias_sd.checkpoints.export import export_encoder
from debias_sd.commands import export as command
from tests.tiny import edit_json, tiny_encoder


@pytest.mark.parametrize(("to", "out"), [("open_clip", "out"), ("long-clip", "x.pt")])
def test_a_text_encoder_alone_is_no_whole_clip(tmp_path, to, out):
    tiny_encoder().save(tmp_path / "text")
    with pytest.raises(ValueError, match="has no image tower and .* loads only a whole CLIP; give a CLIPModel folder"):
        export_encoder(tmp_path / "text", tmp_path / out, to=to)


@pytest.mark.parametrize("lacking", ["text_projection.weight", "visual_projection.weight", "logit_scale"])
def test_a_missing_projection_is_named(copy, tmp_path, lacking):
    state = load_file(copy / "model.safetensors")
    del state[lacking]
    save_file(state, copy / "model.safetensors")
    noun = {"text_projection.weight": "text projection", "visual_projection.weight": "image projection"}.get(lacking)
    with pytest.raises(ValueError, match=f"has no {noun or 'logit scale'} and open_clip loads only a whole CLIP"):
        export_encoder(copy, tmp_path / "out", to="open_clip")


@pytest.mark.parametrize(
    ("to", "out", "said"),
    [
        ("comfyui", "x.pt", r"does not end in \.safetensors, as comfyui needs it; add it"),
        ("comfyui", "x", r"does not end in \.safetensors"),
        ("long-clip", "x.bin", r"does not end in \.pt or \.safetensors"),
        ("comfyui", "folder.safetensors", "is a folder; give the name of a file"),
        ("open_clip", "full", "is not empty; give one that does not exist yet"),
        ("open_clip", "file", "is a file but open_clip reads a folder"),
        ("comfyui", "file/x.safetensors", "cannot be written"),
        ("open_clip", "file/x", "cannot be written"),
        ("onnx", "x", "unknown target 'onnx'; it must be one of comfyui, open_clip, long-clip"),
    ],
)
def test_outputs_that_cannot_be_are_refused(clip, tmp_path, to, out, said):
    (tmp_path / "folder.safetensors").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=said):
        export_encoder(clip, tmp_path / out, to=to)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_encoders_own_folder_is_never_written_to(copy):
    before = (copy / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="lies in the encoder's own folder; give another place"):
        export_encoder(copy, copy / "model.safetensors", to="comfyui")
    with pytest.raises(ValueError, match="is not empty"):
        export_encoder(copy, copy, to="open_clip")
    assert (copy / "model.safetensors").read_bytes() == before


def test_a_file_is_replaced_only_by_a_whole_one(clip, tmp_path, monkeypatch):
    out = tmp_path / "x.safetensors"
    out.write_text("old")

    def half(state, path, metadata):
        path.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", half)
    with pytest.raises(ValueError, match=r"cannot be written \(No space left on device\); give another"):
        export_encoder(clip, out, to="comfyui")
    assert (out.read_text(), [path.name for path in tmp_path.iterdir()]) == ("old", ["x.safetensors"])
    monkeypatch.undo()
    export_encoder(clip, out, to="comfyui")
    assert len(load_file(out)) == 30


def test_the_command_says_what_it_wrote_or_its_fault_in_one_sentence(tmp_path, call):
    code, said, err = call("export", "debias", tmp_path / "out", "--to", "open_clip")
    assert (code, said, err) == (0, f"{tmp_path / 'out'}: 122 tensors for open_clip, 248 positions, float16\n", "")
    code, said, err = call("export", "debias", tmp_path / "x.safetensors", "--to", "comfyui")
    assert said == f"{tmp_path / 'x.safetensors'}: 78 tensors for comfyui, 248 positions, float16\n"
    assert (code, err.count("\n"), "this one has 128 with 6 and 777" in err) == (0, 1, True)
    code, said, err = call("export", "debias", tmp_path / "x.pt", "--to", "long-clip")
    assert (code, said, err.count("\n"), "Traceback" in err) == (2, "", 1, False)
    code, _, err = call("export", tmp_path / "nothing", tmp_path / "out", "--to", "open_clip")
    assert (code, err.count("\n"), "does not exist" in err) == (2, 1, True)


def test_a_siglip_is_refused(copy, tmp_path, call):
    edit_json(copy / "config.json", model_type="siglip")
    code, _, err = call("export", copy, tmp_path / "out", "--to", "open_clip")
    assert (code, "has model_type 'siglip', which must be 'clip' or 'clip_text_model'" in err) == (2, True)


def test_command_and_library_have_the_same_targets():
    assert command.TARGETS == export.TARGETS
