"""A base's own fine-tuned encoder is not thrown away unseen."""

import copy
import warnings
from dataclasses import replace

import pytest
import torch
from tiny import END, tiny_encoder, tiny_sd_pipeline, tiny_tokenizer
from tiny_pipelines import second_encoder, tiny_sdxl

from debias_sd import TextEncoder, encoder_folder, load_debias_pipeline, with_text_encoder
from debias_sd.pipelines.fit import distance, sketch

TOLD = "was not trained from the base's own"


def lengthened(pipe, slot="text_encoder") -> TextEncoder:
    """The base's own encoder at 248 positions, as a training without a step leaves it."""
    model = copy.deepcopy(getattr(pipe, slot))
    model.config.eos_token_id = model.eos_token_id = END
    return TextEncoder(model, tiny_tokenizer(77)).stretch()


def noisy(pipe, amount, *, only=""):
    """`pipe` with its encoder as a fine-tuning leaves it: each weight off by `amount` of its tensor's size."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in pipe.text_encoder.named_parameters():
            if only in name:
                weight += amount * weight.std() * torch.randn_like(weight) if weight.numel() > 1 else 0
    return pipe


@pytest.mark.parametrize(("amount", "only"), [(0.3, ""), (0.3, "layers"), (0.3, "token_embedding"), (0.15, "")])
def test_a_foreign_encoder_is_told_once_with_the_distance(tmp_path, amount, only):
    """Case 113: base encoder and noise: one warning, by both ways, that names 'stretched'."""
    encoder = lengthened(tiny_sd_pipeline())
    base = noisy(tiny_sd_pipeline(), amount, only=only)
    base.save_pretrained(tmp_path)
    for swap in (lambda: with_text_encoder(base, encoder), lambda: load_debias_pipeline(tmp_path, encoder)):
        with pytest.warns(UserWarning, match=TOLD) as told:
            swap()
        (one,) = told.list
        text = str(one.message)
        assert "encoder='stretched' keeps it" in text
        assert float(text.split("text_encoder by ")[1].split()[0]) == pytest.approx(amount, abs=0.03)
        assert one.filename == __file__


def test_both_encoders_of_sdxl_are_told_in_one_warning():
    """Case 113: of two foreign encoders, and of a second one alone."""
    for encoders, slots in (
        ({"encoder": tiny_encoder(), "encoder_2": second_encoder()}, ["text_encoder by", "text_encoder_2 by"]),
        ({"encoder": "stretched", "encoder_2": second_encoder()}, ["text_encoder_2 by", "encoder_2='stretched'"]),
    ):
        with pytest.warns(UserWarning, match=TOLD) as told:
            with_text_encoder(tiny_sdxl(), **encoders)
        (one,) = told.list
        assert all(slot in str(one.message) for slot in slots)


def test_an_encoder_that_was_trained_from_the_base_is_not_told(tmp_path):
    """Case 113: a little training, half precision, a swap of what was swapped in, and a long training by provenance."""
    base = tiny_sd_pipeline()
    own = lengthened(base)
    trained = lengthened(noisy(tiny_sd_pipeline(), 0.05))
    long_trained = lengthened(noisy(tiny_sd_pipeline(), 0.5))
    own.save(tmp_path / "start")
    named = {"config": {"pretrained_model_name_or_path": str(tmp_path / "start")}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for encoder in (own, trained, "stretched", replace(long_trained, provenance=named)):
            pipe = with_text_encoder(base, encoder)
        with_text_encoder(pipe, tiny_encoder())
        with_text_encoder(tiny_sd_pipeline().to(torch.bfloat16), own)
    with pytest.warns(UserWarning, match=TOLD):
        with_text_encoder(base, long_trained)
    with pytest.warns(UserWarning, match=TOLD):
        with_text_encoder(base, replace(tiny_encoder(), provenance=named | {"config": {}}))


@pytest.mark.skipif(not (encoder_folder.WEIGHTS / "stable-diffusion").is_dir(), reason="make weights was not run")
@pytest.mark.parametrize("encoder", ["debias", "long-clip"])
def test_the_embedded_encoders_are_near_the_embedded_base(encoder):
    """Case 113: no warning for the embedded world's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_debias_pipeline(encoder=encoder)


def test_the_rows_that_stand_for_a_matrix_measure_it():
    """Case 113: the distance from some rows is that from all."""
    one, other = tiny_encoder(width=128).model, noisy(tiny_sd_pipeline(width=128), 0).text_encoder
    for group in ("layers", "token_embedding"):
        apart = size = 0.0
        for name, weight in one.named_parameters():
            if group in name and weight.ndim == 2:
                apart += (dict(other.named_parameters())[name] - weight).square().sum().item()
                size += weight.square().sum().item()
        assert distance({n: v for n, v in sketch(one).items() if group in n}, other) == pytest.approx(
            (apart / size) ** 0.5, rel=0.05
        )
    assert distance(sketch(one), one) == 0
