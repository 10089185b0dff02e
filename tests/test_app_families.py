"""The operator's models, real architectures made tiny: two CLIP encoders, transformers, half precision; and faults."""

import asyncio

import numpy as np
import pytest
from tiny import tiny_encoder
from tiny_app import finish
from tiny_pipelines import tiny_flux, tiny_sd2, tiny_sd3, tiny_sd_pipeline, tiny_sdxl

from app.live_run import start_run
from app.models import Models
from app.request import Settings, check_request
from app.routes import answer_of
from app.stage import panel_html
from app.table import run_table

# Pictures are drawn in a thread of its own, where several threads of torch share sums out otherwise.
pytestmark = pytest.mark.usefixtures("one_thread")

PROMPT = "A cat sits on a table. " * 14 + "A red kite flies."
HAS_MAPS = {"sd": True, "sd2": True, "sdxl": True, "sd3": False, "flux": False}
PIPELINES = {"sd": tiny_sd_pipeline, "sd2": tiny_sd2, "sdxl": tiny_sdxl, "sd3": tiny_sd3, "flux": tiny_flux}


def load(family: str, root, *, dtype: str = "float32") -> tuple[Models, Settings]:
    """The app's models as an operator loads them: base folder, its own encoder, and a long one."""
    pipe = PIPELINES[family]()
    pipe.save_pretrained(root / "base")
    tiny_encoder(248, width=pipe.text_encoder.config.hidden_size, seed=1).save(root / "long")
    encoders = {"CLIP": "base", "Long": str(root / "long")}
    settings = Settings(base=str(root / "base"), encoders=encoders, dtype=dtype)
    return Models.load(settings), settings


def draw(models: Models, settings: Settings, **changes: object) -> dict:
    raw = {"prompt": PROMPT, "steps": 1, "seed": 1, "guidance": 4.0} | changes
    run = start_run(check_request(raw, settings), models)
    asyncio.run(finish(run, models))
    return answer_of(run) | {"run": run}


@pytest.mark.parametrize("family", PIPELINES)
def test_each_family_is_drawn_ruled_and_mapped(family, tmp_path):
    models, settings = load(family, tmp_path)
    answer = draw(models, settings)
    faults = {name: encoder["fault"] for name, encoder in answer["encoders"].items()}
    assert faults == {"CLIP": "", "Long": ""}
    pictures = [track.pictures[0] for track in answer["run"].tracks]
    assert pictures[0].image.shape == pictures[1].image.shape
    assert not np.array_equal(pictures[0].image, pictures[1].image)
    read = [sentence.first < 76 for sentence in answer["run"].sentences]
    assert not all(read)
    if HAS_MAPS[family]:
        assert [found is not None for found in pictures[0].maps] == read
        assert all(pictures[1].maps)
    else:
        assert not any(pictures[1].maps)
    sized = draw(models, settings, side=256, encoders=["Long"])
    shapes = [picture.image.shape for picture in sized["run"].tracks[0].pictures]
    if family == "sd3":  # the tiny one's grid of positions is smaller
        assert "pos_embed_max_size" in sized["encoders"]["Long"]["fault"]
    assert shapes == ([] if family == "sd3" else [(256, 256, 3)])
    table = run_table(answer["run"], models)
    assert table.count("<col>") == 3
    assert table.count("77 tokens end here: CLIP reads no further") == 1
    assert 'class="panel done"' in panel_html(answer["run"], answer["run"].tracks[1])
    assert ("T5 reads the prompt too" in table) == (family in ("sd3", "flux"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_draws_on_a_cpu(dtype, tmp_path):
    models, settings = load("sd", tmp_path, dtype=dtype)
    assert str(models.pipes["Long"].text_encoder.dtype) == str(models.base.unet.dtype) == f"torch.{dtype}"
    answer = draw(models, settings)
    assert [encoder["fault"] for encoder in answer["encoders"].values()] == ["", ""]
    assert all(look is not None for look in answer["run"].tracks[1].pictures[0].maps)


def test_three_encoders_cost_one_base_and_the_encoders(tmp_path):
    models, settings = load("sdxl", tmp_path)
    clip, long = models.pipes["CLIP"], models.pipes["Long"]
    shared = [name for name in clip.components if clip.components[name] is long.components[name]]
    assert {"unet", "vae"} <= set(shared)
    held = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for pipe in models.pipes.values()
        for module in pipe.components.values()
        if hasattr(module, "parameters")
        for tensor in module.parameters()
    }
    own = sum(
        tensor.numel() * tensor.element_size()
        for name in ("unet", "vae", "text_encoder", "text_encoder_2")
        for tensor in clip.components[name].parameters()
    )
    more = sum(
        tensor.numel() * tensor.element_size()
        for name in ("text_encoder", "text_encoder_2")
        for tensor in long.components[name].parameters()
    )
    assert sum(held.values()) <= own + more


def test_encoders_share_the_base_and_count_with_tokenizers_of_their_own(tmp_path):
    models, _ = load("sd", tmp_path)
    clip, long = models.pipes["CLIP"], models.pipes["Long"]
    assert list(models.pipes) == ["CLIP", "Long"]
    assert clip.unet is long.unet
    assert clip.vae is long.vae
    assert clip.scheduler is not long.scheduler
    assert [ruler.window for ruler in models.rulers.values()] == [77, 248]
    assert all(models.rulers[name].tokenizer is not pipe.tokenizer for name, pipe in models.pipes.items())
    assert not models.is_checked


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base": "sd"}, "no encoder is named for base"),
        ({"base": "sd", "encoders": {"Mine": "nowhere/at/all"}}, "encoder folder nowhere/at/all does not exist"),
        ({"base": "sd", "encoders": {"CLIP": "base"}, "device": "cuda:99"}, "device cuda:99 is not available here"),
        ({"base": "sd", "encoders": {"CLIP": "base"}, "device": "gpu"}, "device gpu is not available here"),
        ({"base": "none", "encoders": {"CLIP": "base"}}, "does not exist"),
    ],
)
def test_each_fault_is_one_sentence(tmp_path, options, sentence):
    tiny_sd_pipeline().save_pretrained(tmp_path / "sd")
    with pytest.raises(ValueError, match=".") as caught:
        Models.load(Settings(**options | {"base": str(tmp_path / options["base"])}))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
