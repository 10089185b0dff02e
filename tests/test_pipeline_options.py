"""Options of `load_debias_pipeline`, and what is not a pipeline that it knows."""

import inspect
import re

import pytest
from diffusers import DiffusionPipeline, StableDiffusionXLAutoBlocks
from diffusers.loaders.single_file import FromSingleFileMixin
from safetensors.torch import save_file
from tiny import tiny_encoder, tiny_sd_pipeline
from tiny_pipelines import tiny_sdxl
from tiny_single_files import original_naming

from debias_sd import count_tokens, describe_encoders, encode_prompt, load_debias_pipeline, with_text_encoder
from debias_sd.pipelines.options import FROM_PRETRAINED, FROM_SINGLE_FILE


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    tiny_sd_pipeline().save_pretrained(folder / "sd")
    tiny_sdxl().save_pretrained(folder / "sdxl")
    state = original_naming(tiny_sd_pipeline())
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "sd.safetensors")
    return folder


@pytest.mark.parametrize(
    ("base", "options", "told"),
    [
        ("sd", {"safety_cheker": None}, "safety_cheker is not an option of load_debias_pipeline(); did you mean"),
        ("sd", {"requires_safty_checker": False}, "did you mean requires_safety_checker?"),
        ("sd", {"varient": "fp16"}, "did you mean variant?"),
        ("sd", {"local_file_only": True}, "did you mean local_files_only?"),
        ("sd", {"torch_dtyp": None}, "did you mean torch_dtype?"),
        ("sd", {"encoder_1": "stretched"}, "did you mean encoder"),
        ("sd", {"tokenizer_2": None}, "did you mean tokenizer?"),
        ("sd", {"qqq": 1}, "not an option of load_debias_pipeline() or a component of StableDiffusionPipeline; leave"),
        ("sd", {"custom_pipeline": "somewhere", "trust_remote_cod": True}, "did you mean trust_remote_code?"),
        ("sdxl", {"add_watermaker": False}, "did you mean add_watermarker?"),
        ("sd.safetensors", {"safety_cheker": None}, "did you mean safety_checker?"),
        ("sd.safetensors", {"origina_config": None}, "did you mean original_config?"),
    ],
)  # fmt: skip
def test_a_misspelt_option_is_told_with_the_nearest(folders, monkeypatch, base, options, told):
    """Case 121: before anything is loaded, of folders, single files and custom pipelines."""
    monkeypatch.setattr(DiffusionPipeline, "from_pretrained", lambda *_, **__: pytest.fail("it was loaded"))
    monkeypatch.setattr(FromSingleFileMixin, "from_single_file", lambda *_, **__: pytest.fail("it was loaded"))
    if base.endswith(".safetensors"):
        options = options | {"config": folders / "sd"}
    with pytest.raises(ValueError, match=re.escape(told)):
        load_debias_pipeline(folders / base, tiny_encoder(), **options)


def test_every_option_of_diffusers_and_of_the_pipeline_is_known(folders):
    """Case 121: the names in `options` are those that diffusers reads, by its own source."""
    for call, known in (
        (DiffusionPipeline.from_pretrained, FROM_PRETRAINED),
        (FromSingleFileMixin.from_single_file, FROM_SINGLE_FILE),
    ):
        read = set(re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(call)))
        assert len(read) > 8
        assert read <= set(known)
    pipe = load_debias_pipeline(
        folders / "sd", tiny_encoder(), safety_checker=None, requires_safety_checker=False, image_encoder=None,
        low_cpu_mem_usage=True, use_safetensors=True, disable_mmap=False,
    )  # fmt: skip
    assert pipe.config["requires_safety_checker"] is False


def test_a_modular_pipeline_is_told_in_one_sentence(tmp_path):
    """Case 118: with_text_encoder, encode_prompt and the loader say what it is and what to load instead."""
    pipe = StableDiffusionXLAutoBlocks().init_pipeline()
    told = (
        r"is a pipeline of Modular Diffusers; these are not supported yet; load the same model by "
        r"DiffusionPipeline\.from_pretrained\(\) or load_debias_pipeline\(\)\.$"
    )
    for call in (
        lambda: with_text_encoder(pipe, "stretched"),
        lambda: encode_prompt(pipe, "a cat"),
        lambda: describe_encoders(pipe),
        lambda: count_tokens(pipe, "a cat"),
    ):
        with pytest.raises(ValueError, match="^StableDiffusionXLModularPipeline " + told):
            call()
    (tmp_path / "modular_model_index.json").write_text("{}")
    with pytest.raises(ValueError, match=f"^base {tmp_path} " + told):
        load_debias_pipeline(tmp_path, "stretched")
