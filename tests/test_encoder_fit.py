"""Whether an encoder fits a slot of a pipeline: its layers and its plain weights."""

import copy

import pytest
import torch
from tiny import LONG_PROMPT, text_config, tiny_encoder, tiny_sd_pipeline, tiny_text_encoder, tiny_tokenizer
from tiny_checkpoints import convert_state, generator, tiny_open_clip
from tiny_pipelines import WIDTH_2, WIDTH_SD2, tiny_flux, tiny_sd2, tiny_sd3, tiny_sdxl
from transformers import CLIPTextConfig, CLIPTextModel

from debias_sd import TextEncoder, encode_prompt, load_debias_pipeline, with_text_encoder
from debias_sd.checkpoints import convert


def deep_encoder(layers: int, *, width: int = WIDTH_SD2, seed: int = 4) -> TextEncoder:
    torch.manual_seed(seed)
    config = CLIPTextConfig(**text_config(248, width=width) | {"num_hidden_layers": layers})
    return TextEncoder(CLIPTextModel(config).eval(), tiny_tokenizer(248, pad_token="!"))


def sd2_base(layers: int):
    base = tiny_sd2()
    config = CLIPTextConfig(**text_config(77, width=WIDTH_SD2) | {"num_hidden_layers": layers})
    base.register_modules(text_encoder=CLIPTextModel(config).eval())
    return base


def test_a_whole_vit_h_is_cut_to_what_stable_diffusion_2_reads(tmp_path):
    """Case 112: states of layer 23 of 24 after the final norm, as given and from a folder; saved with 23 layers."""
    base, whole = sd2_base(23), deep_encoder(24)
    whole.save(tmp_path / "encoder")
    base.save_pretrained(tmp_path / "base")
    pipes = [with_text_encoder(base, whole), load_debias_pipeline(tmp_path / "base", tmp_path / "encoder")]
    ids = pipes[0].tokenizer(LONG_PROMPT, padding="max_length", return_tensors="pt").input_ids
    with torch.no_grad():
        wanted = whole.model.final_layer_norm(whole.model(ids, output_hidden_states=True).hidden_states[23])
        for pipe in pipes:
            states = pipe.encode_prompt(LONG_PROMPT, "cpu", 1, False)[0]
            torch.testing.assert_close(states, wanted)
            torch.testing.assert_close(encode_prompt(pipe, LONG_PROMPT)["prompt_embeds"], states)
            assert pipe.text_encoder.config.num_hidden_layers == len(pipe.text_encoder.encoder.layers) == 23
    assert len(whole.model.encoder.layers) == whole.model.config.num_hidden_layers == 24
    pipes[0].text_encoder.save_pretrained(tmp_path / "saved")
    assert len(CLIPTextModel.from_pretrained(tmp_path / "saved").encoder.layers) == 23


@pytest.mark.parametrize(
    ("make", "which", "given", "fits"),
    [
        (tiny_sd_pipeline, "encoder", 4, True),
        (tiny_sd_pipeline, "encoder", 5, False),
        (tiny_sd_pipeline, "encoder", 2, False),
        (tiny_sdxl, "encoder", 4, True),
        (tiny_sdxl, "encoder", 2, False),
        (tiny_sdxl, "encoder_2", 4, False),
        (tiny_sdxl, "encoder_2", 2, False),
        (tiny_sd3, "encoder", 4, False),
        (tiny_flux, "encoder", 4, False),
        (tiny_flux, "encoder", 2, False),
    ],
)
def test_layers_that_a_slot_does_not_read_are_cut_or_refused(make, which, given, fits):
    """Case 112: one layer more is cut where no pooled vector is read; all else is refused with both numbers."""
    projection = torch.ones(24, WIDTH_2 if which == "encoder_2" else 32)
    encoder = deep_encoder(given, width=projection.shape[1])
    encoder = TextEncoder(encoder.model, tiny_tokenizer(248), projection=projection)
    encoders = {"encoder": encoder} if which == "encoder" else {"encoder": "stretched", "encoder_2": encoder}
    if not fits:
        slot = "text_encoder" + which.removeprefix("encoder")
        with pytest.raises(
            ValueError, match=rf"has {given} layers and {slot} of this base 3, .*; give an encoder made"
        ):
            with_text_encoder(make(), **encoders)
        return
    pipe = with_text_encoder(make(), **encoders)
    ids = pipe.tokenizer("a cat", padding="max_length", return_tensors="pt").input_ids
    with torch.no_grad():
        all_states = encoder.model(ids, output_hidden_states=True).hidden_states
        found = encode_prompt(pipe, "a cat")["prompt_embeds"][..., :32]
        if make is tiny_sd_pipeline:
            torch.testing.assert_close(found, encoder.model.final_layer_norm(all_states[3]))
        else:
            torch.testing.assert_close(found, all_states[2])


def test_layers_are_compared_before_a_base_is_loaded(tmp_path, monkeypatch):
    """Case 112: of a base in a folder its config says enough."""
    tiny_sd2().save_pretrained(tmp_path / "base")
    deep_encoder(9).save(tmp_path / "encoder")
    monkeypatch.setattr("debias_sd.pipelines.base.Base.load", lambda _: pytest.fail("the base was loaded"))
    with pytest.raises(ValueError, match="has 9 layers and text_encoder of this base 3"):
        load_debias_pipeline(tmp_path / "base", tmp_path / "encoder")


@pytest.mark.parametrize(("width", "layers", "options", "target", "kept"), [
    (64, 24, {}, "retrieval", 24),
    (64, 24, {"target": "sd2"}, "sd2", 23),
    (64, 23, {}, "sd2", 23),
    (1024, 2, {}, "sd2", 2),
])  # fmt: skip
def test_what_convert_says_of_a_tower_is_what_it_writes(tmp_path, monkeypatch, width, layers, options, target, kept):
    """Case 112: a whole tower of 24 layers is not said to be for Stable Diffusion 2.x, unless it is cut for that."""
    monkeypatch.setitem(convert._BY_WIDTH, 64, convert._BY_WIDTH[1024])  # 24 layers of 1024 take 15 seconds
    state = {name: one for name, one in tiny_open_clip(width=width).state_dict().items() if "visual." not in name}
    block = {name: one for name, one in state.items() if name.startswith("transformer.resblocks.0.")}
    for index in range(layers):
        for name, one in block.items():
            state[name.replace(".0.", f".{index}.", 1)] = one + 0.01 * torch.randn(
                one.shape, generator=generator(index)
            )
    found = convert_state(state, tmp_path, activation="gelu", **options)
    assert (found.target, found.layers, found.pad_id) == (target, kept, 0)


class Packed(torch.nn.Parameter):
    """A weight as bitsandbytes has them: whole numbers in a parameter of another class."""

    def __new__(cls, data):
        return torch.Tensor._make_subclass(cls, data, False)


class Scaled(torch.Tensor):
    """A weight as torchao and quanto have them: it says float and is a tensor of another class."""


def quantised(how: str, model: CLIPTextModel) -> CLIPTextModel:
    model = copy.deepcopy(model)
    layer = model.encoder.layers[0].self_attn.q_proj
    if how in ("int8", "uint8"):
        dtype = getattr(torch, how)
        layer.weight = Packed(layer.weight.data.to(dtype))
    elif how == "float8":
        layer.weight = torch.nn.Parameter(layer.weight.data.to(torch.float8_e4m3fn), requires_grad=False)
    elif how == "subclass":
        layer.weight = torch.nn.Parameter(layer.weight.data.as_subclass(Scaled), requires_grad=False)
    else:
        model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    return model


@pytest.mark.parametrize(
    ("how", "shown"),
    [
        ("int8", "encoder.layers.0.self_attn.q_proj.weight is torch.int8"),
        ("uint8", "encoder.layers.0.self_attn.q_proj.weight is torch.uint8"),
        ("float8", "encoder.layers.0.self_attn.q_proj.weight is torch.float8_e4m3fn"),
        ("subclass", "encoder.layers.0.self_attn.q_proj.weight is a Scaled"),
        ("config", "it has a quantization_config"),
    ],
)
def test_a_quantised_encoder_is_refused_before_anything_is_loaded_or_drawn(tmp_path, monkeypatch, how, shown):
    """Case 117: bitsandbytes, torchao, quanto: one sentence, for an encoder that is given and one to be stretched."""
    given = TextEncoder(quantised(how, tiny_text_encoder()), tiny_tokenizer(248))
    base = tiny_sd_pipeline()
    with pytest.raises(ValueError, match=rf"^the encoder is quantised \({shown}\), "):
        with_text_encoder(base, given)
    base.text_encoder = quantised(how, base.text_encoder)
    with pytest.raises(ValueError, match=rf"^the text_encoder of StableDiffusionPipeline is quantised \({shown}\), "):
        with_text_encoder(base, "stretched")
    tiny_sd_pipeline().save_pretrained(tmp_path)
    monkeypatch.setattr("debias_sd.pipelines.base.Base.load", lambda _: pytest.fail("the base was loaded"))
    with pytest.raises(ValueError, match="the encoder is quantised"):
        load_debias_pipeline(tmp_path, given)


def test_a_quantised_encoder_of_the_base_is_left_as_it_is_or_replaced(tmp_path):
    """Case 117: 'base' keeps it, the very object; another encoder in its place takes nothing of it."""
    base = tiny_sd_pipeline()
    base.save_pretrained(tmp_path)
    own = quantised("float8", base.text_encoder)
    assert load_debias_pipeline(tmp_path, "base", text_encoder=own).text_encoder is own
    assert type(own) is CLIPTextModel
    base.text_encoder = own
    pipe = with_text_encoder(base, tiny_encoder())
    assert pipe.text_encoder.dtype == torch.float32
    assert encode_prompt(pipe, "a cat")["prompt_embeds"].shape == (1, 248, 32)
