"""A base from one file, as most fine-tuned models are shared: tiny ones in the original naming, written here."""

import shutil

import pytest
import torch
from diffusers import FluxTransformer2DModel, StableDiffusionPipeline, StableDiffusionXLPipeline
from safetensors.torch import save_file
from tiny import END, LONG_PROMPT, draw, tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import (
    FAMILIES,
    WIDTH,
    WIDTH_T5,
    draw_family,
    tiny_flux,
    tiny_sd2,
    tiny_sd3,
    tiny_sdxl,
    tiny_sdxl_refiner,
)
from tiny_single_files import original_naming, with_another_layer

from debias_sd.pipelines.load import load_debias_pipeline
from debias_sd.pipelines.slots import describe_encoders
from debias_sd.prompts.conditioning import encode_prompt

OPENCLIP = "cond_stage_model.model.transformer.resblocks."


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


def without_weights(folder):
    """What diffusers downloads beside a single file: configs and tokenizers."""
    target = folder.with_name(folder.name + "-configs")
    return shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))


def quiet(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("name", ["model.safetensors", "model.ckpt"])
def test_a_single_file_is_a_base(files, name):
    base, folder = files
    own = quiet(load_debias_pipeline(folder / name, "base", config=str(folder / "folder")))
    assert torch.allclose(draw(own, prompt="a red cat"), draw(base, prompt="a red cat"), atol=1e-5)
    pipe = load_debias_pipeline(folder / name, tiny_encoder(), config=folder / "folder", torch_dtype=torch.float16)
    assert type(pipe) is StableDiffusionPipeline
    assert [(row.positions, row.origin) for row in describe_encoders(pipe)] == [(248, "given")]
    assert pipe.unet.dtype == pipe.text_encoder.dtype == torch.float16
    assert pipe.encode_prompt(LONG_PROMPT, "cpu", 1, False, clip_skip=1)[0].shape == (1, 248, 32)


def test_a_single_file_of_sdxl_is_a_base_with_both_its_encoders(tmp_path):
    base = tiny_sdxl()
    base.save_pretrained(tmp_path / "folder")
    save_file(original_naming(base), tmp_path / "xl.safetensors")
    config = str(tmp_path / "folder")
    own = quiet(load_debias_pipeline(tmp_path / "xl.safetensors", "base", config=config))
    assert torch.allclose(draw(own, prompt="a red cat"), draw(base, prompt="a red cat"), atol=1e-5)
    pipe = load_debias_pipeline(tmp_path / "xl.safetensors", tiny_encoder(), config=config)
    assert type(pipe) is StableDiffusionXLPipeline
    rows = [(row.positions, row.origin, row.pad_id) for row in describe_encoders(pipe)]
    assert rows == [(248, "given", END), (248, "stretched", 0)]
    assert pipe.encode_prompt(LONG_PROMPT, device="cpu")[0].shape == (
        1,
        248,
        32 + base.text_encoder_2.config.hidden_size,
    )


@pytest.mark.parametrize(
    ("make", "encoder", "rows"),
    [
        (tiny_sd2, "stretched", [("text_encoder", 248, "stretched", 0)]),
        (tiny_sdxl_refiner, None, [("text_encoder_2", 248, "stretched", 0)]),
        (
            tiny_sd3,
            tiny_encoder,
            [
                ("text_encoder", 248, "given", END),
                ("text_encoder_2", 248, "stretched", 0),
                ("text_encoder_3", 512, "base", 0),
            ],
        ),
    ],
)
def test_a_single_file_of_another_family(make, encoder, rows, tmp_path):
    base = make()
    base.save_pretrained(tmp_path / "folder")
    state = original_naming(base)
    if make is tiny_sd2:  # OpenCLIP's last layer is in the file and is not read
        state = with_another_layer(state, OPENCLIP)
    save_file(state, tmp_path / "one.safetensors")
    config = without_weights(tmp_path / "folder")
    own = quiet(load_debias_pipeline(tmp_path / "one.safetensors", "base", config=config))
    assert type(own) is type(base)
    expected = draw_family(base, prompt="a red cat")
    assert torch.allclose(draw_family(own, prompt="a red cat"), expected, atol=1e-5)
    encoder = encoder() if callable(encoder) else encoder
    pipe = quiet(load_debias_pipeline(tmp_path / "one.safetensors", encoder, config=config))
    assert [(row.slot, row.positions, row.origin, row.pad_id) for row in describe_encoders(pipe)] == rows
    found = encode_prompt(pipe, LONG_PROMPT, "blurry")
    with torch.no_grad():
        assert torch.equal(found["prompt_embeds"], pipe.encode_prompt(LONG_PROMPT, **_own_options(make))[0])
    assert not torch.equal(draw_family(pipe, **found), expected)


def _own_options(make):
    """What the families' own `encode_prompt` ask for beside the prompt."""
    if make is tiny_sd3:
        return {"prompt_2": None, "prompt_3": None}
    return {"device": "cpu", "num_images_per_prompt": 1, "do_classifier_free_guidance": False}


@pytest.fixture(scope="module")
def sd3(tmp_path_factory):
    """Stable Diffusion 3, its folder, the configs alone, and its file with both CLIPs and with no text encoder."""
    folder = tmp_path_factory.mktemp("sd3")
    base = tiny_sd3()
    base.save_pretrained(folder / "folder")
    state = original_naming(base)
    save_file({key: one for key, one in state.items() if ".t5xxl." not in key}, folder / "clips.safetensors")
    save_file(original_naming(base, encoders=False), folder / "bare.safetensors")
    return base, folder, without_weights(folder / "folder")


@pytest.mark.parametrize("name", ["clips.safetensors", "bare.safetensors"])
def test_what_a_file_of_stable_diffusion_3_lacks_comes_from_the_folder(sd3, name):
    base, folder, _ = sd3
    half = load_debias_pipeline(folder / name, "base", config=folder / "folder", torch_dtype=torch.float16)
    assert {getattr(half, f"text_encoder{number}").dtype for number in ("", "_2", "_3")} == {torch.float16}
    own = quiet(load_debias_pipeline(folder / name, "base", config=folder / "folder"))
    expected = draw_family(base, prompt="a red cat")
    assert torch.allclose(draw_family(own, prompt="a red cat"), expected, atol=1e-5)
    pipe = load_debias_pipeline(folder / name, tiny_encoder(), config=folder / "folder")
    assert [row.origin for row in describe_encoders(pipe)] == ["given", "stretched", "base"]


def test_what_nothing_has_is_named_and_taken_as_an_option(sd3):
    base, folder, configs = sd3
    with pytest.raises(ValueError, match=r"no weights of text_encoder_3 \(T5EncoderModel\), nor has its config; give "):
        load_debias_pipeline(folder / "clips.safetensors", tiny_encoder(), config=configs)
    without = {"text_encoder_3": None, "tokenizer_3": None}
    pipe = quiet(load_debias_pipeline(folder / "clips.safetensors", tiny_encoder(), config=configs, **without))
    assert [row.slot for row in describe_encoders(pipe)] == ["text_encoder", "text_encoder_2"]
    assert draw_family(pipe, prompt=LONG_PROMPT).isfinite().all()
    with pytest.raises(ValueError, match=r"no weights of text_encoder \(CLIPTextModelWithProjection\), nor has its"):
        load_debias_pipeline(folder / "bare.safetensors", tiny_encoder(), config=configs)
    parts = {f"text_encoder{number}": getattr(base, f"text_encoder{number}") for number in ("", "_2", "_3")}
    own = quiet(load_debias_pipeline(folder / "bare.safetensors", "base", config=configs, **parts))
    assert torch.allclose(draw_family(own, prompt="a cat"), draw_family(base, prompt="a cat"), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "part", "places"),
    [
        ("sd", "vae", ("first_stage_model.",)),
        ("sd2", "text_encoder", ("cond_stage_model.",)),
        ("sdxl", "text_encoder", ("conditioner.",)),
        ("sd", "unet", ("model.diffusion_model.",)),
    ],
)
def test_a_part_that_a_file_lacks(family, part, places, tmp_path):
    base = FAMILIES[family]()
    base.save_pretrained(tmp_path / "folder")
    state = {key: one for key, one in original_naming(base).items() if not key.startswith(places)}
    save_file(state, tmp_path / "part.safetensors")
    configs = without_weights(tmp_path / "folder")
    with pytest.raises(
        ValueError, match=rf"has no weights of {part} \(\w+\), nor has its config; give {part}="
    ) as told:
        load_debias_pipeline(tmp_path / "part.safetensors", "stretched", config=configs)
    assert "\n" not in str(told.value)
    if part == "unet":  # a denoiser is what a file is for: never taken from the folder in silence
        with pytest.raises(ValueError, match="has no weights of unet"):
            load_debias_pipeline(tmp_path / "part.safetensors", "stretched", config=tmp_path / "folder")
        return
    own = quiet(load_debias_pipeline(tmp_path / "part.safetensors", "base", config=tmp_path / "folder"))
    assert torch.allclose(draw(own, prompt="a red cat"), draw(base, prompt="a red cat"), atol=1e-5)


def test_a_file_of_flux_of_another_width_and_without_its_other_parts_is_told(tmp_path):
    """diffusers reads files of the one width that FLUX has."""
    base = tiny_flux()
    base.save_pretrained(tmp_path / "folder")
    save_file(original_naming(base), tmp_path / "flux.safetensors")
    configs = without_weights(tmp_path / "folder")
    for config, sentence in (
        (configs, r"has no weights of text_encoder \(CLIPTextModel\), nor has its config; give text_encoder="),
        (tmp_path / "folder", "cannot be loaded as a FluxPipeline .RuntimeError.; check the file"),
    ):
        with pytest.raises(ValueError, match=sentence) as told:
            load_debias_pipeline(tmp_path / "flux.safetensors", tiny_encoder(), config=config)
        assert "\n" not in str(told.value)


def flux_of_full_width():
    """One block of each kind at FLUX's own width: 0.5 billion weights, in bfloat16 as they are shared."""
    with torch.device("meta"):
        transformer = FluxTransformer2DModel(
            patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=128,
            num_attention_heads=24, joint_attention_dim=WIDTH_T5, pooled_projection_dim=WIDTH,
            axes_dims_rope=(16, 56, 56),
        )  # fmt: skip
    transformer = transformer.to(torch.bfloat16).to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in transformer.parameters():
        parameter.data.normal_(std=0.02)
    base = tiny_flux().to(torch.bfloat16)
    base.register_modules(transformer=transformer.eval())
    return base


@pytest.mark.slow
def test_a_file_of_flux_is_its_transformer_and_the_rest_comes_from_the_folder(tmp_path):
    base = flux_of_full_width()
    options = {"height": 32, "width": 32, "num_inference_steps": 1, "output_type": "pt", "max_sequence_length": 16}
    wanted = base(prompt="a red cat", **options, generator=torch.Generator().manual_seed(0)).images
    expected = {name: tensor.clone() for name, tensor in base.transformer.state_dict().items()}
    save_file(original_naming(base), tmp_path / "flux.safetensors")
    for parameter in base.transformer.parameters():  # those in the folder are not to be taken
        parameter.data.zero_()
    base.save_pretrained(tmp_path / "folder")
    del base
    folder = {"config": tmp_path / "folder", "torch_dtype": torch.bfloat16}
    own = quiet(load_debias_pipeline(tmp_path / "flux.safetensors", "base", **folder))
    found = own(prompt="a red cat", **options, generator=torch.Generator().manual_seed(0)).images
    assert torch.allclose(found.float(), wanted.float(), atol=1e-2)
    del own
    pipe = quiet(load_debias_pipeline(tmp_path / "flux.safetensors", tiny_encoder(), **folder))
    assert [(row.positions, row.origin) for row in describe_encoders(pipe)] == [(248, "given"), (512, "base")]
    assert all(torch.equal(tensor, expected[name]) for name, tensor in pipe.transformer.state_dict().items())
    del expected
    embeddings = encode_prompt(pipe, LONG_PROMPT, max_sequence_length=16)
    del options["max_sequence_length"]
    assert pipe(**embeddings, **options).images.isfinite().all()
    # The same by the other way: the transformer from its file, all else from the folder.
    given = {"transformer": pipe.transformer, "torch_dtype": torch.bfloat16}
    other = quiet(load_debias_pipeline(tmp_path / "folder", tiny_encoder(), **given))
    assert torch.equal(encode_prompt(other, LONG_PROMPT, max_sequence_length=16)["pooled_prompt_embeds"],
                       embeddings["pooled_prompt_embeds"])  # fmt: skip


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
    (tmp_path / "no-pipeline").mkdir()
    for path, options, sentence in [
        (
            folder / "model.safetensors",
            {},
            "cannot be loaded as a StableDiffusionPipeline .*without a network give config=",
        ),
        (half, {}, "is damaged or not a checkpoint .SafetensorError"),
        (half, config, "is damaged or not a checkpoint .SafetensorError"),
        (code, config, "or a pickle with more in it than tensors, which is not run .UnpicklingError"),
        (empty, {}, "is damaged or not a checkpoint"),
        (code, {}, "or a pickle with more in it than tensors, which is not run .UnpicklingError"),
        (controlnet, {}, "is a checkpoint of lllyasviel/control_v11p_sd15_canny but must be one"),
        (picture, {}, "is not a checkpoint file"),
        (folder / "model.safetensors", {"config": tmp_path / "no-pipeline"}, "config .*no-pipeline is not a pipeline"),
        (
            folder / "model.safetensors",
            config | {"torch_dtype": {"unet": torch.float16}},
            "give one dtype for a single",
        ),
    ]:
        with pytest.raises(ValueError, match=sentence) as caught:
            load_debias_pipeline(path, tiny_encoder(), **options)
        assert "\n" not in str(caught.value)
