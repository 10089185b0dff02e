"""A base from one file, as most fine-tuned models are shared: a tiny one in the original naming, written here."""

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import save_file
from tiny import LONG_PROMPT, draw, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_sdxl

from debias_sd.checkpoints.keys import text_to_openai
from debias_sd.encoder_slots import describe_encoders
from debias_sd.pipeline import load_debias_pipeline

RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "time_emb_proj": "emb_layers.1", "norm2": "out_layers.0",
    "conv2": "out_layers.3", "conv_shortcut": "skip_connection",
}  # fmt: skip
UNET = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2",
    "down_blocks.0.resnets.0": "input_blocks.1.0", "down_blocks.0.downsamplers.0.conv": "input_blocks.2.0.op",
    "down_blocks.1.resnets.0": "input_blocks.3.0", "down_blocks.1.attentions.0": "input_blocks.3.1",
    "mid_block.resnets.0": "middle_block.0", "mid_block.attentions.0": "middle_block.1",
    "mid_block.resnets.1": "middle_block.2",
    "up_blocks.0.resnets.0": "output_blocks.0.0", "up_blocks.0.attentions.0": "output_blocks.0.1",
    "up_blocks.0.resnets.1": "output_blocks.1.0", "up_blocks.0.attentions.1": "output_blocks.1.1",
    "up_blocks.0.upsamplers.0.conv": "output_blocks.1.2.conv",
    "up_blocks.1.resnets.0": "output_blocks.2.0", "up_blocks.1.resnets.1": "output_blocks.3.0",
}  # fmt: skip
VAE = {
    "conv_norm_out": "norm_out", "mid_block.resnets.0": "mid.block_1", "mid_block.resnets.1": "mid.block_2",
    "mid_block.attentions.0.group_norm": "mid.attn_1.norm", "mid_block.attentions.0.to_q": "mid.attn_1.q",
    "mid_block.attentions.0.to_k": "mid.attn_1.k", "mid_block.attentions.0.to_v": "mid.attn_1.v",
    "mid_block.attentions.0.to_out.0": "mid.attn_1.proj_out",
    "down_blocks.0.resnets": "down.0.block", "down_blocks.1.resnets": "down.1.block",
    "down_blocks.0.downsamplers.0": "down.0.downsample",
    "up_blocks.0.resnets": "up.1.block", "up_blocks.1.resnets": "up.0.block",
    "up_blocks.0.upsamplers.0": "up.1.upsample", "conv_shortcut": "nin_shortcut",
}  # fmt: skip


def renamed(key, names):
    for new, old in names.items():
        key = key.replace(new, old)
    return key


def original_naming(pipe):
    """The tensors of a tiny Stable Diffusion 1.x or XL in the naming of their first releases."""
    state = {}
    for key, tensor in pipe.unet.state_dict().items():
        place = next(name for name in UNET if key.startswith(name + "."))
        rest = key.removeprefix(place)
        rest = renamed(rest, RESNET) if ".resnets." in key else rest
        state["model.diffusion_model." + UNET[place] + rest] = tensor
    for key, tensor in pipe.vae.state_dict().items():
        name = renamed(key, VAE)
        is_conv = ".attn_1." in name and name.endswith("weight") and ".norm." not in name
        state["first_stage_model." + name] = tensor[:, :, None, None] if is_conv else tensor
    second = getattr(pipe, "text_encoder_2", None)
    place = "cond_stage_model." if second is None else "conditioner.embedders.0."
    for key, tensor in pipe.text_encoder.state_dict().items():
        state[f"{place}transformer.text_model.{key}"] = tensor
    if second is not None:
        for key, tensor in text_to_openai(second.state_dict()).items():
            state[f"conditioner.embedders.1.model.{key}"] = tensor
    return {key: tensor.contiguous() for key, tensor in state.items()}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The pipeline, its folder, and its file in both formats."""
    folder = tmp_path_factory.mktemp("single")
    pipe = tiny_sd_pipeline()
    pipe.save_pretrained(folder / "folder")
    state = original_naming(pipe)
    save_file(state, folder / "model.safetensors")
    torch.save({"state_dict": state, "global_step": 7}, folder / "model.ckpt")
    return pipe, folder


@pytest.mark.parametrize("name", ["model.safetensors", "model.ckpt"])
def test_a_single_file_is_a_base(files, name):
    base, folder = files
    own = load_debias_pipeline(folder / name, "base", config=str(folder / "folder"))
    own.set_progress_bar_config(disable=True)
    assert torch.allclose(draw(own, prompt="a red cat"), draw(base, prompt="a red cat"), atol=1e-5)
    pipe = load_debias_pipeline(folder / name, tiny_encoder(), config=str(folder / "folder"), torch_dtype=torch.float16)
    assert type(pipe) is StableDiffusionPipeline
    assert [(row.positions, row.origin) for row in describe_encoders(pipe)] == [(248, "given")]
    assert pipe.unet.dtype == pipe.text_encoder.dtype == torch.float16
    assert pipe.encode_prompt(LONG_PROMPT, "cpu", 1, False, clip_skip=1)[0].shape == (1, 248, 32)


def test_a_single_file_of_sdxl_is_a_base_with_both_its_encoders(tmp_path):
    base = tiny_sdxl()
    base.save_pretrained(tmp_path / "folder")
    save_file(original_naming(base), tmp_path / "xl.safetensors")
    config = str(tmp_path / "folder")
    own = load_debias_pipeline(tmp_path / "xl.safetensors", "base", config=config)
    own.set_progress_bar_config(disable=True)
    assert torch.allclose(draw(own, prompt="a red cat"), draw(base, prompt="a red cat"), atol=1e-5)
    pipe = load_debias_pipeline(tmp_path / "xl.safetensors", tiny_encoder(), config=config)
    assert type(pipe) is StableDiffusionXLPipeline
    rows = [(row.positions, row.origin, row.pad_id) for row in describe_encoders(pipe)]
    assert rows == [(248, "given", 49407), (248, "stretched", 0)]
    assert pipe.encode_prompt(LONG_PROMPT, device="cpu")[0].shape == (
        1,
        248,
        32 + base.text_encoder_2.config.hidden_size,
    )


def test_what_is_wrong_with_a_single_file_is_told(files, tmp_path):
    _, folder = files
    config = {"config": str(folder / "folder")}
    half = tmp_path / "half.safetensors"
    half.write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    empty = tmp_path / "empty.ckpt"
    empty.write_bytes(b"")
    controlnet = tmp_path / "controlnet.safetensors"
    save_file({"control_model.time_embed.0.weight": torch.zeros(1)}, controlnet)
    picture = tmp_path / "picture.png"
    picture.write_bytes(b"x")
    code = tmp_path / "code.ckpt"
    torch.save({"state_dict": pytest.param}, code)
    for path, options, sentence in [
        (
            folder / "model.safetensors",
            {},
            "cannot be loaded as a StableDiffusionPipeline .*without a network give config=",
        ),
        (half, {}, "is damaged or no checkpoint .SafetensorError"),
        (code, config, "cannot be loaded as a StableDiffusionPipeline"),
        (empty, {}, "is damaged or no checkpoint"),
        (code, {}, "or a pickle with more in it than tensors, which is not run .UnpicklingError"),
        (controlnet, {}, "is a checkpoint of lllyasviel/control_v11p_sd15_canny, supported are"),
        (picture, {}, "is no checkpoint file"),
    ]:
        with pytest.raises(ValueError, match=sentence) as caught:
            load_debias_pipeline(path, tiny_encoder(), **options)
        assert "\n" not in str(caught.value)
