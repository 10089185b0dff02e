"""LoRA and textual inversion on pipelines with longer encoders."""

import re
import warnings

import peft
import pytest
import torch
from tiny import END, LONG_PROMPT, START, tiny_encoder, tiny_sd_pipeline, tiny_tokenizer
from tiny_pipelines import tiny_sdxl

from debias_sd import count_tokens, encode_prompt, with_text_encoder

SHORT = "a red cat"


def kohya(*, encoders=("lora_te",), widths=(32,), alpha=2.0, seed=0):
    """A LoRA file of the text encoders as kohya's scripts write it: rank 4, old names."""
    torch.manual_seed(seed)
    state = {}
    for encoder, width in zip(encoders, widths, strict=True):
        for layer in range(3):
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                name = f"{encoder}_text_model_encoder_layers_{layer}_self_attn_{part}"
                state[f"{name}.lora_down.weight"] = torch.randn(4, width) / 4
                state[f"{name}.lora_up.weight"] = torch.randn(width, 4) / 4
                state[f"{name}.alpha"] = torch.tensor(alpha)
    return state


def scalings(model):
    return {
        name: dict(part.scaling)
        for name, part in model.named_modules()
        if isinstance(getattr(part, "scaling", 0), dict)
    }


@pytest.fixture
def lora_pipe():
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    pipe.load_lora_weights(kohya(), adapter_name="style")
    return pipe


def test_a_kohya_lora_is_encoded_at_its_scale_and_left_as_it_was(lora_pipe):
    plain = encode_prompt(with_text_encoder(tiny_sd_pipeline(), tiny_encoder()), LONG_PROMPT * 2, "blurry")
    before = scalings(lora_pipe.text_encoder)
    assert {scale for one in before.values() for scale in one.values()} == {0.5}  # alpha / rank
    one, none, again, last = (
        encode_prompt(lora_pipe, LONG_PROMPT * 2, "blurry", lora_scale=scale) for scale in (1, 0, 1, None)
    )
    for name in last:
        assert torch.equal(one[name], again[name])
        assert torch.equal(one[name], last[name])
        torch.testing.assert_close(none[name], plain[name])
        assert (one[name] - none[name]).abs().max() > 0.1
    assert scalings(lora_pipe.text_encoder) == before


def test_clip_skip_and_lora_do_not_stand_in_each_others_way():
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    pipe.encode_prompt(SHORT, "cpu", 1, True, clip_skip=1)
    encode_prompt(pipe, SHORT, clip_skip=1)
    pipe.load_lora_weights(kohya(), adapter_name="style")
    found = encode_prompt(pipe, SHORT, clip_skip=1)
    with torch.no_grad():
        states = pipe.encode_prompt(SHORT, "cpu", 1, False, clip_skip=1)[0]
    assert torch.equal(found["prompt_embeds"], states)
    assert not torch.equal(encode_prompt(pipe, SHORT, clip_skip=1, lora_scale=0)["prompt_embeds"], states)


@pytest.mark.parametrize("names", ["kohya", "diffusers, old", "diffusers, flat"])
def test_lora_is_loaded_after_a_call_for_all_layers(lora_pipe, names):
    """Case 116: as compel's penultimate mode makes it, with files of every naming; a second one too."""
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    state = kohya()
    if names != "kohya":
        prefix = "text_encoder." + ("text_model." if names.endswith("old") else "")
        down = {name: tensor for name, tensor in state.items() if ".lora_" in name}
        state = {}
        for name, tensor in down.items():
            layer, part, side = re.fullmatch(
                r"lora_te_text_model_encoder_layers_(\d)_self_attn_(\w+)\.lora_(\w+)\.weight", name
            ).groups()
            half = {"down": "A", "up": "B"}[side]
            state[f"{prefix}encoder.layers.{layer}.self_attn.{part}.lora_{half}.weight"] = tensor * (
                0.5 if half == "A" else 1
            )
    ids = torch.tensor([[START, 320, END]])
    pipe.text_encoder(ids, output_hidden_states=True)
    pipe.load_lora_weights(state, adapter_name="style")
    found, wanted = (encode_prompt(one, LONG_PROMPT)["prompt_embeds"] for one in (pipe, lora_pipe))
    torch.testing.assert_close(found, wanted)
    pipe.text_encoder(ids, output_hidden_states=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's, that there is another adapter
        pipe.load_lora_weights(kohya(seed=1), adapter_name="second")
    assert pipe.get_list_adapters() == {"text_encoder": ["style", "second"]}


@pytest.mark.parametrize("scale", [0.3, 1.0, 2])
def test_the_scale_is_that_of_diffusers(lora_pipe, scale):
    found = encode_prompt(lora_pipe, SHORT, "blurry", lora_scale=scale)
    with torch.no_grad():
        states, negative = lora_pipe.encode_prompt(SHORT, "cpu", 1, True, "blurry", lora_scale=scale)
    assert torch.equal(found["prompt_embeds"], states)
    assert torch.equal(found["negative_prompt_embeds"], negative)


def test_a_weight_that_was_set_before_comes_back_after_scale_0(lora_pipe):
    lora_pipe.set_adapters("style", 0.3)
    before = scalings(lora_pipe.text_encoder)
    encode_prompt(lora_pipe, SHORT, lora_scale=0)
    assert scalings(lora_pipe.text_encoder) == before
    lora_pipe.text_encoder.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("no memory")))
    with pytest.raises(RuntimeError, match="no memory"):
        encode_prompt(lora_pipe, SHORT, lora_scale=0.7)
    assert scalings(lora_pipe.text_encoder) == before


def test_lora_of_both_encoders_of_sdxl():
    pipe = with_text_encoder(tiny_sdxl(), tiny_encoder())
    plain = encode_prompt(pipe, LONG_PROMPT)
    pipe.load_lora_weights(kohya(encoders=("lora_te1", "lora_te2"), widths=(32, 48)))
    found, none = (encode_prompt(pipe, LONG_PROMPT, lora_scale=scale) for scale in (1, 0))
    for part in (slice(0, 32), slice(32, 80)):
        assert (found["prompt_embeds"] - plain["prompt_embeds"])[..., part].abs().max() > 0.1
    assert not torch.equal(found["pooled_prompt_embeds"], plain["pooled_prompt_embeds"])
    assert none.pop("cross_attention_kwargs") == {"scale": 0}
    torch.testing.assert_close(none, plain)


def test_a_peft_lora_is_unloaded_again():
    pipe = with_text_encoder(tiny_sd_pipeline(), tiny_encoder())
    plain = encode_prompt(pipe, SHORT)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "fc1"], init_lora_weights=False)
    pipe.text_encoder.add_adapter(config)
    assert not torch.equal(encode_prompt(pipe, SHORT)["prompt_embeds"], plain["prompt_embeds"])
    none = encode_prompt(pipe, SHORT, lora_scale=0)
    torch.testing.assert_close({name: none[name] for name in plain}, plain)
    pipe.unload_lora_weights()
    assert torch.equal(encode_prompt(pipe, SHORT)["prompt_embeds"], plain["prompt_embeds"])


def learn(pipe, *, second=True):
    """Load a textual inversion of three vectors as SDXL's files have it: clip_l and clip_g."""
    torch.manual_seed(2)
    pipe.load_textual_inversion({"<toy>": torch.randn(3, 32)}, token="<toy>")
    if second:
        pipe.load_textual_inversion(
            {"<toy>": torch.randn(3, 48)}, token="<toy>", text_encoder=pipe.text_encoder_2, tokenizer=pipe.tokenizer_2
        )
    return pipe


def test_a_learnt_token_of_both_encoders_is_never_cut():
    pipe = learn(with_text_encoder(tiny_sdxl(), tiny_encoder()))
    long = encode_prompt(pipe, "cat " * 245 + "<toy> dog.", "a <toy>")
    assert long["prompt_embeds"].shape == (1, 2 * 248, 80)
    alone = encode_prompt(pipe, "<toy> dog.", "a <toy>")
    torch.testing.assert_close(long["prompt_embeds"][:, 248:], alone["prompt_embeds"])
    with torch.no_grad():
        states, negative, pooled, _ = pipe.encode_prompt("<toy> dog.", negative_prompt="a <toy>", device="cpu")
    assert torch.equal(alone["prompt_embeds"], states)
    assert torch.equal(alone["negative_prompt_embeds"], negative)
    assert torch.equal(alone["pooled_prompt_embeds"], pooled)
    ids = pipe.tokenizer_2("<toy> <toy>_1 <toy>_2 dog.", padding="max_length", return_tensors="pt").input_ids
    end = ids[0].tolist().index(END)
    with torch.no_grad():
        output = pipe.text_encoder_2(ids)
        by_hand = pipe.text_encoder_2.text_projection(output.last_hidden_state[:, end])
    torch.testing.assert_close(pooled, by_hand)  # not at the learnt tokens, whose ids are larger


def test_a_learnt_token_of_one_encoder_is_told(recwarn):
    pipe = learn(with_text_encoder(tiny_sdxl(), tiny_encoder()), second=False)
    with pytest.warns(
        UserWarning, match="<toy> is a textual inversion that text_encoder_2 does not know and reads letter"
    ):
        encode_prompt(pipe, "a <toy>")
    recwarn.clear()
    encode_prompt(pipe, "a toy")
    assert not recwarn.list


def test_weights_and_windows_of_77_with_a_learnt_token():
    pipe = learn(with_text_encoder(tiny_sdxl(), tiny_encoder()))
    plain = encode_prompt(pipe, "a <toy> cat", "")
    found = encode_prompt(pipe, "a (<toy>:1.5) cat", "", weighting="a1111")
    ratio = found["prompt_embeds"][0, :7, :32] / plain["prompt_embeds"][0, :7, :32]
    torch.testing.assert_close((ratio / ratio[1]).median(dim=-1).values, torch.tensor([1, 1, 1.5, 1.5, 1.5, 1, 1]))
    short = encode_prompt(pipe, "cat " * 73 + "<toy> dog", window=77)["prompt_embeds"]
    assert short.shape == (1, 154, 80)
    torch.testing.assert_close(short[:, 77:], encode_prompt(pipe, "<toy> dog", window=77)["prompt_embeds"])


def test_a_learnt_token_with_capitals_is_read_by_both_encoders():
    """Case 114: all vectors in both encoders of SDXL, as typed out by hand in diffusers; none inside a word."""
    pipe = with_text_encoder(tiny_sdxl(), tiny_encoder())
    torch.manual_seed(2)
    for encoder, tokenizer, width in (("text_encoder", "tokenizer", 32), ("text_encoder_2", "tokenizer_2", 48)):
        parts = {"text_encoder": getattr(pipe, encoder), "tokenizer": getattr(pipe, tokenizer)}
        pipe.load_textual_inversion({"EasyNegative": torch.randn(3, width)}, token="EasyNegative", **parts)
    with torch.no_grad():
        typed_out = "EasyNegative EasyNegative_1 EasyNegative_2, a cat"
        states, _, pooled, _ = pipe.encode_prompt(typed_out, device="cpu", do_classifier_free_guidance=False)
    for text in ("EasyNegative, a cat", "easynegative, a cat"):
        found = encode_prompt(pipe, text)
        assert torch.equal(found["prompt_embeds"], states)
        assert torch.equal(found["pooled_prompt_embeds"], pooled)
        assert {report.tokens for report in count_tokens(pipe, text).values()} == {6}
    pieces = tiny_tokenizer()("easynegatives", add_special_tokens=False).input_ids  # as if nothing were learnt
    assert {report.tokens for report in count_tokens(pipe, "EasyNegatives").values()} == {len(pieces)}
