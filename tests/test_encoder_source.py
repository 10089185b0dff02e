"""Where an encoder is found: folders, subfolders, and the hub's cache as huggingface_hub lays it out, offline."""

import shutil

import pytest
import torch
from tiny import tiny_encoder, tiny_sd_pipeline

from debias_sd import load_debias_pipeline, load_encoder, with_text_encoder

REVISION = "0123456789abcdef0123456789abcdef01234567"


def cached(cache, name, source, *, ref="main", revision=REVISION):
    """Put the folder `source` into a cache as the snapshot of a repository."""
    repository = cache / ("models--" + name.replace("/", "--"))
    shutil.copytree(source, repository / "snapshots" / revision)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / ref).write_text(revision)
    return repository


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A base in a folder, and a cache with a repository of encoders and one of a whole pipeline."""
    root = tmp_path_factory.mktemp("places")
    tiny_sd_pipeline().save_pretrained(root / "base")
    tiny_encoder(seed=3).save(root / "encoders" / "long")
    tiny_encoder(seed=4).save(root / "other")
    cached(root / "cache", "some/encoders", root / "encoders")
    cached(root / "cache", "some/encoder", root / "encoders" / "long")
    cached(root / "cache", "some/encoder", root / "other", ref="v2", revision="f" * 40)
    with_text_encoder(tiny_sd_pipeline(), tiny_encoder(seed=5)).save_pretrained(root / "pipeline")
    cached(root / "cache", "some/pipeline", root / "pipeline")
    return root


def weights(pipe):
    return pipe.text_encoder.embeddings.token_embedding.weight


@pytest.mark.parametrize(
    ("encoder", "options", "seed"),
    [
        ("some/encoder", {}, 3),
        ("some/encoder", {"revision": "v2"}, 4),
        ("some/encoder", {"revision": "f" * 40, "token": False}, 4),
        ("some/encoder", {"local_files_only": True}, 3),
        ("some/encoders", {"subfolder": "long"}, 3),
        ("some/pipeline", {"subfolder": "text_encoder"}, 5),
        ("FOLDER/encoders", {"subfolder": "long"}, 3),
        ("FOLDER/pipeline", {"subfolder": "text_encoder"}, 5),
        ("FOLDER/pipeline/text_encoder", {}, 5),
    ],
)
def test_options_of_the_hub_reach_the_encoder(places, encoder, options, seed):
    """Case 122: revision, cache_dir, token, local_files_only and subfolder; of the loader and of load_encoder."""
    source = encoder.replace("FOLDER", str(places))
    where = options | {"cache_dir": str(places / "cache")}
    pipe = load_debias_pipeline(places / "base", source, **where)
    wanted = tiny_encoder(seed=seed).model.embeddings.token_embedding.weight
    assert torch.equal(weights(pipe), wanted)
    assert torch.equal(load_encoder(source, **where).model.embeddings.token_embedding.weight, wanted)


def test_base_and_encoder_come_from_one_cache(places):
    """Case 122: both are hub ids; the base's own way is as before."""
    cached(places / "cache", "some/base", places / "base")
    options = {"cache_dir": str(places / "cache"), "local_files_only": True}
    pipe = load_debias_pipeline("some/base", "some/encoders", subfolder="long", **options)
    assert torch.equal(weights(pipe), tiny_encoder(seed=3).model.embeddings.token_embedding.weight)


@pytest.mark.parametrize(
    ("encoder", "options", "sentence"),
    [
        ("some/encoder", {"revision": "v3"}, "was not found locally or on the Hub in revision v3"),
        ("some/encoders", {"subfolder": "short"}, "encoder some/encoders has no folder short; correct subfolder"),
        ("stretched", {"subfolder": "long"}, "subfolder is that of an encoder in a folder or on the hub, and none is"),
        ("debias", {"subfolder": "long"}, "subfolder is that of an encoder in a folder or on the hub, and none is"),
        ("some/nothing", {"token": "x"}, "encoder some/nothing was not found locally or on the Hub"),
    ],
)
def test_an_encoder_that_is_not_there_is_told(places, encoder, options, sentence):
    """Case 122: one sentence that names the revision or the folder."""
    with pytest.raises(ValueError, match=sentence) as caught:
        load_debias_pipeline(places / "base", encoder, cache_dir=str(places / "cache"), **options)
    assert str(caught.value).isprintable()


def test_a_variant_is_that_of_the_encoder_too(places, tmp_path):
    """Case 122: where its folder has it, else the weights that are there."""
    tiny_sd_pipeline().to(torch.float16).save_pretrained(tmp_path / "base", variant="fp16")
    tiny_encoder(seed=3).save(tmp_path / "encoder")
    options = {"variant": "fp16", "torch_dtype": torch.float16}
    plain = load_debias_pipeline(tmp_path / "base", tmp_path / "encoder", **options)
    assert torch.equal(weights(plain), tiny_encoder(seed=3).model.embeddings.token_embedding.weight.half())
    half = places / "other" / "model.safetensors"
    shutil.copyfile(half, tmp_path / "encoder" / "model.fp16.safetensors")
    pipe = load_debias_pipeline(tmp_path / "base", tmp_path / "encoder", **options)
    assert torch.equal(weights(pipe), tiny_encoder(seed=4).model.embeddings.token_embedding.weight.half())
