"""The operator's models: what is shared, what is each encoder's own, and faults in one sentence."""

import asyncio

import pytest
from tiny_app import finish
from tiny_world import save_tiny_clip, tiny_pipeline

from app.models import Models
from app.request import Request
from app.run import start_run
from app.settings import Settings


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    base = tiny_pipeline()
    base.unet.register_to_config(sample_size=16)
    base.save_pretrained(root / "sd")
    save_tiny_clip(root / "long", window=248, seed=1)
    return root


def test_encoders_share_the_base_and_count_with_tokenizers_of_their_own(folders):
    settings = Settings(base=str(folders / "sd"), encoders={"CLIP": "base", "Mine": str(folders / "long")})
    models = Models.load(settings)
    clip, mine = models.pipes["CLIP"], models.pipes["Mine"]
    assert list(models.pipes) == ["CLIP", "Mine"]
    assert clip.unet is mine.unet
    assert clip.vae is mine.vae
    assert clip.scheduler is not mine.scheduler
    assert [ruler.window for ruler in models.rulers.values()] == [77, 248]
    assert all(models.rulers[name].tokenizer is not pipe.tokenizer for name, pipe in models.pipes.items())
    assert not models.is_checked
    run = start_run(Request("A star.", ("CLIP", "Mine"), steps=1, side=None), models)
    asyncio.run(finish(run, models))
    assert [track.state for track in run.tracks] == ["done", "done"], [track.fault for track in run.tracks]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base": "sd"}, "no encoder is named for base"),
        ({"base": "sd", "encoders": {"Mine": "nowhere/at/all"}}, "encoder folder nowhere/at/all does not exist"),
        ({"base": "sd", "encoders": {"CLIP": "base"}, "device": "cuda:99"}, "--device cuda:99 is not there"),
        ({"base": "sd", "encoders": {"CLIP": "base"}, "device": "gpu"}, "--device gpu is not there"),
        ({"base": "none", "encoders": {"CLIP": "base"}}, "does not exist"),
    ],
)
def test_each_fault_is_one_sentence(folders, options, sentence):
    with pytest.raises(ValueError, match=".") as caught:
        Models.load(Settings(**options | {"base": str(folders / options["base"])}))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
