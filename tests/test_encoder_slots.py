"""What may fill a slot: trained encoders, stretched ones, projections; and what may not, in one sentence."""

import peft
import pytest
import torch
from tiny import END, LONG_PROMPT, START, VOCABULARY, edit_json, tiny_encoder, tiny_sd_pipeline, tiny_tokenizer
from tiny_pipelines import (
    SIDE,
    draw_family,
    second_encoder,
    tiny_flux,
    tiny_projected_encoder,
    tiny_sd2,
    tiny_sd3,
    tiny_sdxl,
    tiny_sdxl_refiner,
)
from transformers import CLIPTokenizer

from debias_sd.encoder import TextEncoder
from debias_sd.pipelines.load import load_debias_pipeline, with_text_encoder
from debias_sd.pipelines.options import use_xformers
from debias_sd.pipelines.slots import describe_encoders
from debias_sd.prompts.conditioning import encode_prompt


def test_a_trained_second_encoder_takes_the_place_of_the_stretched_one():
    second = second_encoder()
    pipe = with_text_encoder(tiny_sdxl(), tiny_encoder(), encoder_2=second)
    assert [row.origin for row in describe_encoders(pipe)] == ["given", "given"]
    states, _, pooled, _ = pipe.encode_prompt(LONG_PROMPT, do_classifier_free_guidance=False)
    ids = pipe.tokenizer_2(LONG_PROMPT, padding="max_length", return_tensors="pt").input_ids
    given = second.model(ids, output_hidden_states=True)
    assert torch.allclose(states[..., 32:], given.hidden_states[-2], atol=1e-6)
    assert torch.allclose(pooled, given.pooler_output @ second.projection.T, atol=1e-6)
    refiner = with_text_encoder(tiny_sdxl_refiner(), encoder_2=second)
    assert [row.origin for row in describe_encoders(refiner)] == ["given"]
    assert torch.equal(refiner.encode_prompt(LONG_PROMPT, do_classifier_free_guidance=False)[2], pooled)


def test_stretched_is_the_bases_own_with_its_first_twenty_positions():
    base = tiny_sd2()
    pipe = with_text_encoder(base, "stretched")
    assert [(row.positions, row.origin) for row in describe_encoders(pipe)] == [(248, "stretched")]
    ids = torch.randint(0, START, (1, 20))
    assert torch.equal(pipe.text_encoder(ids)[0], base.text_encoder(ids)[0])
    assert pipe.text_encoder.config.eos_token_id == pipe.text_encoder.eos_token_id == END
    assert base.text_encoder.config.eos_token_id == base.text_encoder.eos_token_id == 2
    own = dict(base.text_encoder.named_parameters())
    different = [n for n, p in pipe.text_encoder.named_parameters() if p.data_ptr() != own[n].data_ptr()]
    assert different == ["embeddings.position_embedding.weight"]
    again = with_text_encoder(pipe, "stretched")
    table = "embeddings.position_embedding.weight"
    assert again.text_encoder.get_parameter(table).data_ptr() == pipe.text_encoder.get_parameter(table).data_ptr()


def test_stable_diffusion_3_keeps_the_identity_and_takes_other_projections_from_the_folder():
    base = tiny_sd3()
    pipe = with_text_encoder(base, tiny_encoder(), encoder_2=second_encoder())
    assert torch.equal(pipe.text_encoder.text_projection.weight, torch.eye(32))
    assert not torch.equal(pipe.text_encoder_2.text_projection.weight, base.text_encoder_2.text_projection.weight)
    bare = TextEncoder(second_encoder().model, tiny_tokenizer(248))
    with pytest.raises(ValueError, match="text_encoder_2 of this base needs the pooled vector projected"):
        with_text_encoder(base, tiny_encoder(), encoder_2=bare)
    with pytest.raises(ValueError, match="the encoder projects to 8 numbers and text_encoder_2 of this base to 24"):
        with_text_encoder(base, tiny_encoder(), encoder_2=second_encoder(projection=8))
    without_t5 = with_text_encoder(tiny_sd3(t5=False), tiny_encoder())
    assert [row.slot for row in describe_encoders(without_t5)] == ["text_encoder", "text_encoder_2"]
    assert draw_family(without_t5, prompt=LONG_PROMPT, max_sequence_length=32).shape == (1, 3, SIDE, SIDE)


@pytest.mark.parametrize(
    ("make", "encoders", "sentence"),
    [
        (tiny_sd2, {"encoder": tiny_encoder}, "32 wide and text_encoder of this base is 64 wide.*1024, OpenCLIP"),
        (tiny_sdxl, {"encoder": second_encoder}, "48 wide and text_encoder of this base is 32 wide"),
        (
            tiny_sdxl,
            {"encoder": tiny_encoder, "encoder_2": tiny_encoder},
            "32 wide and text_encoder_2 of this base is 48",
        ),
        (tiny_sdxl_refiner, {"encoder": tiny_encoder}, "refiner has only a second text encoder; leave encoder out"),
        (tiny_flux, {"encoder": tiny_encoder, "encoder_2": second_encoder}, "FLUX has one CLIP text encoder; leave"),
        (tiny_sd2, {"encoder": tiny_encoder, "encoder_2": second_encoder}, "Stable Diffusion has one CLIP text"),
        (tiny_sdxl, {"encoder_2": second_encoder}, "no encoder is named for StableDiffusionXLPipeline"),
        (
            tiny_sdxl,
            {"encoder": tiny_encoder, "encoder_2": lambda: second_encoder(length=305)},
            "encoder has 248 positions and encoder_2 305",
        ),
        (tiny_sdxl, {"encoder": lambda: tiny_encoder(250)}, "cannot be stretched to the 250 of the other"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(make, encoders, sentence):
    base = make()
    with pytest.raises(ValueError, match=sentence) as caught:
        with_text_encoder(base, **{name: build() for name, build in encoders.items()})
    assert "\n" not in str(caught.value)


def test_a_given_encoder_shares_weights_and_nothing_else():
    encoder = tiny_encoder()
    one, two = (with_text_encoder(tiny_sd_pipeline(), encoder) for _ in range(2))
    weight = "embeddings.token_embedding.weight"
    assert one.text_encoder.get_parameter(weight).data_ptr() == encoder.model.get_parameter(weight).data_ptr()
    one.tokenizer.add_tokens(["<toy>"])
    one.text_encoder.resize_token_embeddings(VOCABULARY + 1)
    one.text_encoder.to(torch.float16)
    for model in (two.text_encoder, encoder.model):
        assert (model.get_parameter(weight).shape, model.dtype) == ((VOCABULARY, 32), torch.float32)
    assert len(two.tokenizer) == len(encoder.tokenizer) == VOCABULARY
    assert not hasattr(encoder.model.config, "debias_sd_origin")


@pytest.mark.parametrize("stretched", [False, True])
def test_encoders_that_are_long_enough_are_not_shared_with_the_base(stretched):
    """A learnt token on the new pipeline would be on the old one too."""
    base = with_text_encoder(tiny_sdxl(), tiny_encoder(), encoder_2=second_encoder())
    pipe = with_text_encoder(base, "stretched" if stretched else tiny_encoder(seed=4))
    assert [row.origin for row in describe_encoders(pipe)] == ["given", "given"]
    weight = "text_model.embeddings.token_embedding.weight"
    assert pipe.text_encoder_2.get_parameter(weight).data_ptr() == base.text_encoder_2.get_parameter(weight).data_ptr()
    for model, tokenizer, width in (("text_encoder", "tokenizer", 32), ("text_encoder_2", "tokenizer_2", 48)):
        parts = {"text_encoder": getattr(pipe, model), "tokenizer": getattr(pipe, tokenizer)}
        pipe.load_textual_inversion({"<toy>": torch.ones(3, width)}, token="<toy>", **parts)
        assert (len(getattr(pipe, tokenizer)), len(getattr(base, tokenizer))) == (VOCABULARY + 3, VOCABULARY)
        assert len(getattr(base, model).get_input_embeddings().weight) == VOCABULARY


@pytest.mark.parametrize("make", [tiny_sd_pipeline, tiny_sdxl])
def test_the_base_may_be_compiled(make):
    base = make()
    plain = with_text_encoder(base, "stretched")
    for name in ("text_encoder", "text_encoder_2") if make is tiny_sdxl else ("text_encoder",):
        setattr(base, name, torch.compile(getattr(base, name), backend="eager"))
    own = describe_encoders(base)
    pipe = with_text_encoder(base, "stretched")
    assert describe_encoders(pipe) == describe_encoders(plain)
    assert [row.kind for row in own] == [row.kind for row in describe_encoders(pipe)]
    found, expected = (encode_prompt(one, LONG_PROMPT) for one in (pipe, plain))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert type(with_text_encoder(base, tiny_encoder()).text_encoder).__name__ == "CLIPTextModel"


def test_dtypes_are_those_asked_for(tmp_path):
    tiny_sdxl().save_pretrained(tmp_path)
    encoder = tiny_encoder()
    half = load_debias_pipeline(tmp_path, encoder, torch_dtype=torch.bfloat16)
    assert {half.unet.dtype, half.text_encoder.dtype, half.text_encoder_2.dtype} == {torch.bfloat16}
    assert encoder.model.dtype == torch.float32
    dtypes = {"default": torch.float32, "text_encoder": torch.float16}
    mixed = load_debias_pipeline(tmp_path, encoder, torch_dtype=dtypes)
    assert [getattr(mixed, name).dtype for name in ("unet", "text_encoder", "text_encoder_2")] == [
        torch.float32, torch.float16, torch.float32
    ]  # fmt: skip


def test_a_lora_on_the_old_text_encoder_is_not_lost_without_a_word(monkeypatch):
    # transformers 5.24 asks for a peft that is not out; what it calls is there in the newest one.
    monkeypatch.setattr("transformers.integrations.peft.MIN_PEFT_VERSION", peft.__version__)
    base = tiny_sdxl()
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    base.text_encoder_2.add_adapter(config, "style")
    pipe = with_text_encoder(base, tiny_encoder())  # the second one is stretched: its LoRA stays
    plain = with_text_encoder(tiny_sdxl(), tiny_encoder())
    assert not torch.equal(pipe.encode_prompt("a cat")[2], plain.encode_prompt("a cat")[2])
    base.text_encoder.add_adapter(config, "style")
    with pytest.raises(ValueError, match="text_encoder of the pipeline has the LoRA 'style', which the new"):
        with_text_encoder(base, tiny_encoder())
    assert with_text_encoder(base, "stretched").text_encoder.peft_config.keys() == {"style"}


def test_a_learnt_token_of_the_base_is_not_lost_without_a_word():
    base = tiny_sd_pipeline()
    base.load_textual_inversion({"<toy>": torch.ones(2, 32)}, token="<toy>")
    with pytest.raises(
        ValueError, match="has the added token '<toy>', which the encoder lacks; if it was learnt, swap"
    ):
        with_text_encoder(base, tiny_encoder())
    pipe = with_text_encoder(base, "stretched")
    ids = pipe.tokenizer(pipe.maybe_convert_prompt("a <toy> cat", pipe.tokenizer), return_tensors="pt").input_ids
    output = pipe.text_encoder(ids)
    assert torch.equal(output.pooler_output, output.last_hidden_state[:, -1])  # not at the learnt token, the largest id


def test_an_encoder_and_a_tokenizer_that_do_not_belong_together_are_told(tmp_path):
    tiny_sdxl().save_pretrained(tmp_path)
    long = tiny_encoder()
    sentence = "the tokenizer of base .* reads 77 tokens and its text_encoder 248; give both from one folder"
    with pytest.raises(ValueError, match=sentence):
        load_debias_pipeline(tmp_path, "base", text_encoder=long.model)
    with pytest.raises(ValueError, match="reads 248 tokens and its text_encoder 77"):
        load_debias_pipeline(tmp_path, "base", tokenizer=long.tokenizer)
    with pytest.raises(ValueError, match="text_encoder is given as an option and through encoder= too"):
        load_debias_pipeline(tmp_path, long, text_encoder=long.model)
    with pytest.raises(ValueError, match="encoder='base' leaves the pipeline as it is, so encoder_2 has no place"):
        load_debias_pipeline(tmp_path, "base", encoder_2="stretched")
    edit_json(tmp_path / "tokenizer_2" / "tokenizer_config.json", model_max_length=None)
    with pytest.raises(ValueError, match="tokenizer_2 of .* has no model_max_length, so it has no window; write"):
        load_debias_pipeline(tmp_path, long)


def test_an_option_of_the_users_is_not_changed(tmp_path):
    tiny_sdxl().save_pretrained(tmp_path)
    own = tiny_projected_encoder(seed=20)
    pipe = load_debias_pipeline(tmp_path, tiny_encoder(), text_encoder_2=own)
    assert pipe.text_encoder_2.text_model.embeddings.position_embedding.num_embeddings == 248
    assert own.text_model.embeddings.position_embedding.num_embeddings == own.config.max_position_embeddings == 77


def test_an_offloaded_pipeline_and_a_vocabulary_with_other_words_are_told():
    base = tiny_sdxl()
    base.enable_group_offload(torch.device("cpu"), offload_type="leaf_level")
    with pytest.raises(ValueError, match="the pipeline is offloaded already"):
        with_text_encoder(base, tiny_encoder())
    vocabulary, merges = tiny_tokenizer().get_vocab(), []
    vocabulary["cat</w>"], vocabulary["dog</w>"] = vocabulary["dog</w>"], vocabulary["cat</w>"]
    other = CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=248, pad_token="<|endoftext|>")
    encoder = TextEncoder(tiny_encoder().model, other)
    with pytest.raises(ValueError, match=r"vocabulary is another one: '(cat|dog)</w>' has id \d+ in tokenizer of this"):
        with_text_encoder(tiny_sd_pipeline(), encoder)
    # The same words with the same ids, and no merges: every text falls into letters.
    tokenizer = tiny_tokenizer(248)
    other = CLIPTokenizer(vocab=tokenizer.get_vocab(), merges=[], model_max_length=248, pad_token="<|endoftext|>")
    assert other("cat").input_ids != tokenizer("cat").input_ids
    with pytest.raises(
        ValueError, match="merges letters to them in another order, so it cuts texts into other tokens;"
    ):
        with_text_encoder(tiny_sd_pipeline(), TextEncoder(tiny_encoder().model, other))


@pytest.mark.skipif(torch.cuda.is_available(), reason="xformers may run here")
def test_xformers_says_why_it_cannot_run(monkeypatch):
    sentence = "xformers is not installed; install it|xformers needs a CUDA device and torch finds none here"
    with pytest.raises(ValueError, match=sentence):
        load_debias_pipeline("/no/such", "base", xformers=True)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    pipe = tiny_sd_pipeline()
    with pytest.raises(
        ValueError, match=r"xformers is installed and cannot run here \(\w+\), for each of its releases is for"
    ):
        use_xformers(pipe)  # diffusers finds none, or finds that its kernels do not run
    assert draw_family(pipe, prompt="a cat").isfinite().all()
    with pytest.raises(ValueError, match="xformers needs a CUDA device and torch finds none here; leave xformers out"):
        load_debias_pipeline("/no/such", "base", xformers=True)
