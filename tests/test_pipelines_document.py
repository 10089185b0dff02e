"""What docs/pipelines.md tells a user to type, on tiny models at the paths that it names."""

import copy
import re
from pathlib import Path

import peft
import pytest
import torch
from diffusers import StableDiffusionPipeline
from peft.utils import get_peft_model_state_dict
from safetensors.torch import save_file
from tiny import LONG_PROMPT, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import draw_family, tiny_sd3
from tiny_single_files import original_naming

from debias_sd import describe_encoders, encode_prompt, load_debias_pipeline, with_text_encoder

DOCUMENT = Path(__file__).parent.parent / "docs" / "pipelines.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_every_block_is_run_here_and_embeddings_take_a_lora_scale(monkeypatch):
    assert len(BLOCKS) == 3
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", peft.__version__)
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    pipe.text_encoder.add_adapter(peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False), "style")
    names = {"encode_prompt": encode_prompt, "pipe": pipe, "prompt": LONG_PROMPT * 2}
    exec(BLOCKS[1], names)
    assert names["embeddings"]["cross_attention_kwargs"] == {"scale": 0.7}
    with pytest.raises(TypeError, match="multiple values"):
        draw_family(pipe, **names["embeddings"], cross_attention_kwargs={"scale": 1.0})


def test_a_file_of_stable_diffusion_3_without_t5(tmp_path, monkeypatch):
    """The line before it, of FLUX, is that of tests/test_single_file.py: its width does not fit in a quick test."""
    flux, line = BLOCKS[0].splitlines()
    assert re.search(r'"[\w-]+\.safetensors", "path/to/encoder", config="path/to/[\w.-]+", torch_dtype', flux)
    monkeypatch.chdir(tmp_path)
    base = tiny_sd3()
    base.save_pretrained("path/to/sd3")
    tiny_encoder().save("path/to/encoder")
    state = {key: tensor for key, tensor in original_naming(base).items() if ".t5xxl." not in key}
    save_file(state, "sd3-medium.safetensors")
    names = {"load_debias_pipeline": load_debias_pipeline, "torch": torch}
    exec(line, names)
    assert [row.origin for row in describe_encoders(names["pipe"])] == ["given", "stretched"]


def save_lora(pipe, folder):
    """A LoRA of the UNet and the text encoder, as diffusers saves it."""
    layers = {}
    for part, names in (("unet", ["to_q", "to_v"]), ("text_encoder", ["q_proj", "v_proj"])):
        donor = copy.deepcopy(getattr(pipe, part))
        donor.add_adapter(peft.LoraConfig(r=4, target_modules=names, init_lora_weights=False))
        layers[f"{part}_lora_layers"] = {name: 9 * one for name, one in get_peft_model_state_dict(donor).items()}
    StableDiffusionPipeline.save_lora_weights(folder, **layers, weight_name="style.safetensors")


@pytest.fixture
def fusing(tmp_path, monkeypatch):
    """A base, its sibling with a long encoder, that encoder, and a LoRA file in the working folder."""
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", peft.__version__)
    monkeypatch.chdir(tmp_path)
    base, encoder = tiny_sd_pipeline(), tiny_encoder()
    save_lora(base, tmp_path)
    return base, with_text_encoder(base, encoder), encoder


def test_fused_in_parts_of_its_own_nothing_else_changes(fusing):
    base, sibling, encoder = fusing
    before = [draw_family(pipe, prompt="a red cat") for pipe in (base, sibling)]
    names = {"with_text_encoder": with_text_encoder, "base": base, "encoder": encoder}
    exec(BLOCKS[2], names)
    assert torch.equal(draw_family(base, prompt="a red cat"), before[0])
    assert torch.equal(draw_family(sibling, prompt="a red cat"), before[1])
    assert not torch.equal(draw_family(names["pipe"], prompt="a red cat"), before[1])
    again = with_text_encoder(base, encoder)
    assert torch.equal(draw_family(again, prompt="a red cat"), before[1])


def test_fused_in_shared_parts_the_base_changes_too(fusing):
    """What the document warns of: without copies the block changes every pipeline of the base."""
    base, sibling, encoder = fusing
    before = [draw_family(pipe, prompt="a red cat") for pipe in (base, sibling)]
    block = "".join(line for line in BLOCKS[2].splitlines(keepends=True) if "deepcopy" not in line)
    exec(block, {"with_text_encoder": with_text_encoder, "base": base, "encoder": encoder})
    for pipe, picture in zip((base, sibling), before, strict=True):
        assert not torch.equal(draw_family(pipe, prompt="a red cat"), picture)
