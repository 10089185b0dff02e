"""The world's VAE: standardised latents, the decoder refined by itself, states that survive a crash, resume."""

import copy

import pytest
import torch

from train_unet import models as training
from train_unet.models import load_state, new_vae, pictures, refine_decoder, save_state, standardise_latents, train_vae

VAE_RUN = {"steps": 4, "batch_size": 2, "learning_rate": 1e-3, "seed": 0}


def no_report(step, loss):
    pass


def stop_at(last):
    """A report that ends the run, as a kill would, once step `last` is done."""

    def report(step, loss):
        if step == last:
            raise KeyboardInterrupt

    return report


def states_equal(left, right):
    left, right = left.state_dict(), right.state_dict()
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@torch.no_grad()
def test_standardised_latents_have_mean_0_and_spread_1_and_decode_to_the_same_pictures():
    images = pictures(0, 12, seed=3)
    vae = new_vae(0).eval()
    before = vae.encode(images).latent_dist
    decoded, log_variances = vae.decode(before.mean).sample, before.logvar
    standardise_latents(vae, images)
    after = vae.encode(images).latent_dist
    assert torch.allclose(after.mean.mean(dim=(0, 2, 3)), torch.zeros(16), atol=1e-4)
    assert torch.allclose(after.mean.std(dim=(0, 2, 3)), torch.ones(16), atol=1e-4)
    assert (before.mean.std(dim=(0, 2, 3)) - 1).abs().min() > 0.1  # they were not so before
    assert torch.allclose(vae.decode(after.mean).sample, decoded, atol=1e-4)
    scale = before.mean.std(dim=(0, 2, 3))[None, :, None, None]
    assert torch.allclose(after.logvar, log_variances - 2 * scale.log(), atol=1e-3)


def test_refining_changes_the_decoder_and_nothing_before_the_latents(tmp_path):
    vae = new_vae(0)
    before = copy.deepcopy(vae.state_dict())
    refine_decoder(vae, tmp_path, **VAE_RUN, report=no_report)
    changed = {name.split(".")[0] for name, tensor in vae.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"decoder", "post_quant_conv"}
    assert {name.split(".")[0] for name in before} == changed | {"encoder", "quant_conv"}
    assert not vae.training


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("train", [pytest.param("train_vae", marks=pytest.mark.slow), "refine_decoder"])
def test_an_interrupted_run_ends_bit_for_bit_where_the_uninterrupted_one_does(train, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "VAE_SAVE_STEPS", 2)
    monkeypatch.setattr(training, "DECODER_SAVE_STEPS", 2)

    def go(folder, report):
        if train == "train_vae":
            return train_vae(folder, **VAE_RUN, report=report)
        return refine_decoder(new_vae(0), folder, **VAE_RUN, report=report)

    whole = go(tmp_path / "whole", no_report)
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "cut", stop_at(2))  # the third step is lost, the state is that of the second
    steps = []
    resumed = go(tmp_path / "cut", lambda step, loss: steps.append(step))
    assert steps == [2, 3]
    assert states_equal(whole, resumed)
    assert not states_equal(whole, new_vae(0))


def test_pictures_follow_their_numbers_and_the_seed():
    images = pictures(5, 3, seed=0)
    assert images.shape == (3, 3, 48, 48)
    assert images.min() >= -1
    assert images.max() <= 1
    assert torch.equal(images[1:], pictures(6, 2, seed=0))
    assert not torch.equal(images, pictures(5, 3, seed=1))


def test_a_state_comes_back_with_its_step_and_none_is_step_0(tmp_path):
    saved, fresh = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    save_state(tmp_path / "run" / "state.pt", 7, {"model": saved})
    assert load_state(tmp_path / "run" / "state.pt", {"model": fresh}) == 7
    assert states_equal(saved, fresh)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["state.pt"]
    model = torch.nn.Linear(2, 2)
    before = copy.deepcopy(model)
    assert load_state(tmp_path / "state.pt", {"model": model}) == 0
    assert states_equal(model, before)


def test_a_state_with_code_in_it_is_refused(tmp_path):
    ran = tmp_path / "ran"

    class Code:
        def __reduce__(self):
            return (ran.mkdir, ())

    torch.save({"step": 1, "model": Code()}, tmp_path / "state.pt")
    with pytest.raises(Exception, match="[Ww]eights.only"):
        load_state(tmp_path / "state.pt", {})
    assert not ran.exists()
