"""A base is found as a folder, a hub id or a file; what is wrong with it is told in one sentence."""

import peft
import pytest
import torch
from diffusers import StableDiffusionPipeline
from tiny import edit_json, tiny_encoder, tiny_sd_pipeline

from debias_sd import encode_prompt, encoder_folder, load_encoder, stretch_encoder, with_text_encoder
from debias_sd.pipelines.base import find_base
from debias_sd.pipelines.load import load_debias_pipeline

SHORT = "a red cat"


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    tiny_sd_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders") / "long"
    tiny_encoder().save(folder)
    return folder


def spoiled(base_folder, tmp_path, spoil):
    folder = tmp_path / "spoiled"
    folder.mkdir()
    for path in base_folder.iterdir():
        (folder / path.name).symlink_to(path)
    spoil(folder)
    return folder


def other_family(folder):
    edited(folder, "model_index.json", _class_name="StableDiffusionXLPipeline", text_encoder_2=["t", "C"])


def rewrite(path, text):
    """Write a file of its own where a link to the shared folder is."""
    path.unlink()
    path.write_text(text)


def edited(folder, name, **changes):
    path = folder / name
    if path.parent != folder:  # a link to a whole folder
        whole = path.parent.resolve()
        path.parent.unlink()
        path.parent.mkdir()
        for file in whole.iterdir():
            (path.parent / file.name).symlink_to(file)
    rewrite(path, path.read_text())
    edit_json(path, **changes)


def truncated_unet(folder):
    edited(folder, "unet/config.json")
    weights = folder / "unet" / "diffusion_pytorch_model.safetensors"
    data = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (other_family, "StableDiffusionXLPipeline is of another family"),
        (truncated_unet, "is damaged or incomplete"),
        (lambda folder: (folder / "unet").unlink(), "is damaged or incomplete"),
        (lambda folder: (folder / "model_index.json").unlink(), "has no model_index.json"),
        (lambda folder: rewrite(folder / "model_index.json", "[]"), "is not a JSON object"),
        (lambda folder: edited(folder, "model_index.json", _class_name="NoSuch"), "damaged or incomplete .Attribute"),
        (lambda folder: edited(folder, "unet/config.json", cross_attention_dim=64), "is damaged or incomplete"),
        (
            lambda folder: edited(folder, "text_encoder/config.json", max_position_embeddings=248),
            "248 positions but its weights have 77; editing",
        ),
        (lambda folder: edited(folder, "scheduler/scheduler_config.json", beta_schedule="x"), "is damaged"),
        (lambda folder: (folder / "tokenizer").unlink(), "the tokenizer of .* copy the whole tokenizer folder"),
    ],
    ids=["family", "truncated", "no unet", "no index"]
    + ["index list", "no class", "unet width", "edited positions", "scheduler", "no tokenizer"],
)
def test_a_faulty_base_is_told_in_one_sentence(base_folder, encoder_dir, tmp_path, spoil, sentence):
    folder = spoiled(base_folder, tmp_path, spoil)
    with pytest.raises(ValueError, match=sentence) as caught:
        load_debias_pipeline(folder, encoder_dir)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "encoder", "sentence"),
    [
        ("/no/such", "base", "base folder /no/such does not exist"),
        ("nobody-here/no-such-model", "base", "was not found locally or on the Hub"),
        (__file__, "base", "is not a checkpoint file"),
        ("anything", "/no/such", "encoder folder /no/such does not exist"),
    ],
)
def test_what_is_nowhere_is_told_in_one_sentence(base, encoder, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        load_debias_pipeline(base, encoder)
    assert "\n" not in str(caught.value)


def test_a_file_is_not_called_damaged_for_the_name_of_its_folder(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, content, sentence in (
        ("a", "no weights", "is not a checkpoint file"),
        ("b", "", "is damaged or not a ch"),
    ):
        path = tmp_path / "empty" / f"{name}.safetensors"
        path.write_text(content)
        with pytest.raises(ValueError, match=sentence):
            load_debias_pipeline(path, "base")


def test_without_weights_it_says_what_to_run(tmp_path, monkeypatch):
    monkeypatch.setattr(encoder_folder, "WEIGHTS", tmp_path)
    with pytest.raises(ValueError, match="run make weights"):
        load_debias_pipeline()


def test_a_base_by_hub_id_comes_from_the_cache(base_folder, encoder_dir, tmp_path, monkeypatch):
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "models--someone--base"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / commit).symlink_to(base_folder)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    pipe = load_debias_pipeline("someone/base", encoder_dir, cache_dir=tmp_path)
    assert (type(pipe), pipe.tokenizer.model_max_length) == (StableDiffusionPipeline, 248)
    with pytest.raises(ValueError, match="the encoder is 64 wide and text_encoder of this base is 32 wide"):
        load_debias_pipeline("someone/base", tiny_encoder(width=64), cache_dir=tmp_path)


def test_a_pipeline_that_was_saved_with_a_lora_in_its_encoders_place_is_told(tmp_path):
    """transformers saves the LoRA alone, with the name of the folder that the encoder came from; fused, all of it."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    pipe = tiny_sd_pipeline()
    pipe.text_encoder.add_adapter(config, "style")
    pipe.save_pretrained(tmp_path / "lora")
    with pytest.raises(ValueError, match="text_encoder of base .* is only a LoRA because .* fuse_lora") as told:
        load_debias_pipeline(tmp_path / "lora", "stretched")
    assert "\n" not in str(told.value)
    states = encode_prompt(pipe, "a cat")["prompt_embeds"]
    pipe.fuse_lora()
    pipe.unload_lora_weights()
    pipe.save_pretrained(tmp_path / "fused")
    again = encode_prompt(load_debias_pipeline(tmp_path / "fused", "base"), "a cat")["prompt_embeds"]
    torch.testing.assert_close(again, states)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"encoder2": "stretched"}, "encoder2 is not an option of load_debias_pipeline.*did you mean encoder_2"),
        ({"min_position": 77}, "did you mean min_positions"),
        ({"torch_dtype": "float16"}, "torch_dtype is 'float16' but must be .*; give one"),
        ({"dtype": "auto"}, "torch_dtype is 'auto' but must be torch.float32"),
        ({"torch_dtype": {"unet": "half"}}, "torch_dtype is 'half' but must be torch.float32"),
    ],
)
def test_an_option_that_diffusers_would_pass_over_is_told(base_folder, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_debias_pipeline(base_folder, "stretched", **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"device_map": "auto"}, "NotImplementedError: auto not supp"), ({"quantization_config": 1}, "ValueError")],
)
def test_what_diffusers_says_of_an_option_is_told(base_folder, options, reason):
    with pytest.raises(ValueError, match=rf"is damaged or incomplete .{reason}.* or does not take an option") as told:
        load_debias_pipeline(base_folder, "stretched", **options)
    assert "\n" not in str(told.value)


ENCODER = tiny_encoder()


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (lambda base: load_debias_pipeline(base, ENCODER.model), "an encoder is of type CLIPTextModel but must be"),
        (lambda base: load_debias_pipeline(base, False), "an encoder is of type bool but must be a folder"),
        (lambda base: load_debias_pipeline(base, "stretched", encoder_2=["a"]), "an encoder is of type list"),
        (
            lambda base: load_debias_pipeline(tiny_sd_pipeline(), ENCODER),
            "base is of type StableD.* there is with_text",
        ),
        (lambda base: load_debias_pipeline(base, base), "config.json does not exist; .* is a whole pipeline"),
        (lambda base: load_debias_pipeline(base, base / "text_encoder"), "has 77 positions but needs 248"),
        (
            lambda base: load_debias_pipeline(base, ENCODER, torch_dtype=torch.int8),
            "torch_dtype is torch.int8 but must be",
        ),
        (lambda base: load_debias_pipeline(base, ENCODER, torch_dtype=torch.float8_e4m3fn), "is torch.float8_e4m3fn"),
        (
            lambda base: load_debias_pipeline(base, ENCODER, min_positions="77"),
            "min_positions is '77' but must be a whole number",
        ),
        (lambda base: with_text_encoder(tiny_sd_pipeline(), "base"), "encoder is 'base', which is StableD"),
        (lambda base: load_encoder(None), "encoder is of type NoneType but must be a folder, a name or a Hub repo id"),
        (
            lambda base: stretch_encoder(tiny_sd_pipeline()),
            "model is of type StableDiffusionPipeline but must be .*'stretched'",
        ),
    ],
)
def test_what_is_of_another_kind_is_told_in_one_sentence(base_folder, use, sentence):
    with pytest.raises(ValueError, match=sentence) as told:
        use(base_folder)
    assert "\n" not in str(told.value)
    assert str(told.value).endswith(".")


def test_a_base_without_an_encoder_named_and_a_width_that_does_not_fit_are_told(base_folder, tmp_path):
    with pytest.raises(ValueError, match="no encoder is named for .*'stretched' .* or, while loading, 'base'"):
        load_debias_pipeline(base_folder)
    assert load_debias_pipeline(base_folder, "stretched").tokenizer.model_max_length == 248
    folder = spoiled(base_folder, tmp_path, lambda folder: (folder / "unet").unlink())
    tiny_encoder(width=64).save(tmp_path / "wide")
    for wide in (tmp_path / "wide", tiny_encoder(width=64)):
        with pytest.raises(ValueError, match="the encoder is 64 wide and text_encoder of this base is 32 wide"):
            load_debias_pipeline(folder, wide)


@pytest.mark.skipif(not (encoder_folder.WEIGHTS / "stable-diffusion").is_dir(), reason="make weights was not run")
@pytest.mark.parametrize(("encoder", "positions"), [(None, 248), ("debias", 248), ("long-clip", 248), ("base", 77)])
def test_the_embedded_models(encoder, positions):
    pipe = load_debias_pipeline(encoder=encoder)
    assert (type(pipe).__name__, pipe.tokenizer.model_max_length) == ("StableDiffusionPipeline", positions)


@pytest.mark.parametrize("encoder", ["base", "stretched"])
def test_a_base_in_half_precision_only_is_found(encoder, tmp_path):
    """As people share them: model.fp16.safetensors and nothing else."""
    tiny_sd_pipeline().to(torch.float16).save_pretrained(tmp_path, variant="fp16")
    assert not (tmp_path / "unet" / "diffusion_pytorch_model.safetensors").exists()
    pipe = load_debias_pipeline(tmp_path, encoder)
    assert pipe.unet.dtype == pipe.text_encoder.dtype == torch.float32
    with pytest.raises(ValueError, match="is damaged or incomplete"):
        load_debias_pipeline(tmp_path, encoder, variant="bf16")


@pytest.mark.parametrize(
    ("names", "variant"),
    [
        (["model.fp16.safetensors"], {"variant": "fp16"}),
        (["m.fp16-00001-of-00002.safetensors", "m.fp16-00002-of-00002.safetensors"], {"variant": "fp16"}),
        (["model.safetensors", "model.fp16.safetensors"], {}),
        (["model-00001-of-00002.safetensors"], {}),
        (["model.fp16.safetensors", "model.ema.safetensors"], {}),
        ([], {}),
    ],
)
def test_a_variant_is_taken_where_it_is_the_only_one(base_folder, names, variant, tmp_path):
    def fill(folder):
        (folder / "unet").unlink()
        (folder / "unet").mkdir()
        for name in names:
            (folder / "unet" / name).touch()

    folder = spoiled(base_folder, tmp_path, fill)
    assert find_base(folder, {}).options == variant
    assert find_base(folder, {"variant": "x"}).options == {"variant": "x"}
