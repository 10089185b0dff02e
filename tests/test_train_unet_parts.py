"""What the UNet is trained with: captions, batches, conditioning, noise, loss, schedules."""

import math
import random

import pytest
import torch
from tiny_world import tiny_clip, tiny_pipeline
from unet_tiny import tiny_unet_config

from debias_sd.shapes.caption import length, read_sentence
from debias_sd.shapes.tokenizer import build_tokenizer
from train_unet.models import caption_of, draw_scene, most_things, new_scheduler, new_unet
from train_unet.run import put_in_place
from train_unet.settings import UnetConfig
from train_unet.train import Average, Conditioner, denoising_loss, learning_rate_at, make_batch


@pytest.mark.parametrize(
    ("progress", "most"),
    [(0.0, 1), (0.049, 1), (0.05, 2), (0.12, 4), (0.2, 6), (0.3, 8), (0.399, 8), (0.4, 9), (1.0, 9)],
)
def test_the_curriculum_goes_from_one_thing_to_nine(progress, most):
    assert most_things(progress) == most


@pytest.mark.parametrize("count", range(1, 10))
def test_a_caption_names_every_thing_and_fits_into_77_tokens(count):
    tokenizer, forms = build_tokenizer(77), set()
    for seed in range(150):
        scene = draw_scene(seed, count, seed=1)
        caption = caption_of(scene, random.Random(seed))
        assert {thing for sentence in caption.named for thing in sentence} == set(scene.things)
        # `named` is what the writer says; reading the words back is independent of it.
        assert {thing for sentence in caption.sentences for thing in read_sentence(sentence)} == set(scene.things)
        tokens = tokenizer(caption.text, add_special_tokens=False).input_ids
        assert len(tokens) == length(caption.text) <= 75
        forms.add(caption.text.endswith("."))
    assert forms == ({True, False} if count < 7 else {False})  # sentences and tags; seven things fit only as tags


def test_a_scene_depends_on_its_number_and_the_seed_and_a_batch_on_its_step(pool, tmp_path):
    scenes = [draw_scene(0, 3, seed=0), draw_scene(1, 3, seed=0), draw_scene(0, 3, seed=1), draw_scene(0, 4, seed=0)]
    assert draw_scene(0, 3, seed=0) == scenes[0]
    assert len(set(scenes)) == 4
    assert [len(scene.things) for scene in scenes] == [3, 3, 3, 4]
    config = tiny_unet_config(tmp_path, max_train_steps=100, train_batch_size=32)
    first = make_batch(70, pool, config)
    random.seed(5)
    torch.manual_seed(5)
    again = make_batch(70, pool, config)
    other_seed = make_batch(70, pool, tiny_unet_config(tmp_path, max_train_steps=100, train_batch_size=32, seed=1))
    assert all(torch.equal(*pair) for pair in zip(first, again, strict=True))
    assert not torch.equal(first[0], make_batch(71, pool, config)[0])
    assert not torch.equal(first[0], other_seed[0])


@pytest.fixture(scope="module")
def pool():
    """Latents and states that say where they come from: number of things, scene and caption; empty states are -1."""
    count, scene = torch.arange(1.0, 10)[:, None], torch.arange(5.0)[None]
    origin = (100 * count + 10 * scene)[:, :, None]
    states = origin + torch.arange(2.0)[None, None]
    return {"latents": origin[..., None, None], "states": states[..., None, None], "empty": torch.full((1, 1), -1.0)}


def test_a_caption_belongs_to_its_scene_and_one_in_ten_is_empty(pool, tmp_path):
    config = tiny_unet_config(tmp_path, max_train_steps=100, train_batch_size=200)
    batches = [make_batch(step, pool, config) for step in range(100)]
    latents, states = (torch.cat([batch[part] for batch in batches]).flatten() for part in (0, 1))
    empty = states == -1
    assert 0.09 < empty.float().mean() < 0.11  # three standard deviations of 20,000 draws are 0.006
    assert torch.equal((states[~empty] // 10) * 10, latents[~empty])
    assert {int(state % 10) for state in states[~empty]} == {0, 1}
    for step, most in ((0, 1), (15, 4), (99, 9)):
        counts = make_batch(step, pool, config)[0].flatten() // 100
        assert (counts.min(), counts.max()) == (1, most)


def test_the_learning_rate_reaches_zero_and_the_average_follows_its_formula():
    config = UnetConfig("e", "o", max_train_steps=400, lr_warmup_steps=10, learning_rate=2.0)
    rates = [learning_rate_at(step, config) for step in range(401)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9:300] == [2.0] * 291
    assert rates[350] == pytest.approx(1.0)
    assert rates[399] == pytest.approx(0.02)
    assert rates[400] == 0.0
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(model.weight, 0.0)
    average = Average(model, 0.5)
    torch.nn.init.constant_(model.weight, 1.0)
    average.update(model, 0)  # (1 + 0) / (10 + 0) of the old value
    assert average.model.weight.item() == pytest.approx(0.9)
    average.update(model, 1000)  # the warm-up is over: half of the old value
    assert average.model.weight.item() == pytest.approx(0.95)
    assert not average.model.weight.requires_grad


def test_captions_condition_the_unet_as_stable_diffusions_own_prompts_do_by_a_frozen_encoder():
    pipe = tiny_pipeline()
    texts = ["small red star top left, black background", "", "There is a big blue ring in the center. " * 20]
    states = Conditioner(pipe.text_encoder, pipe.tokenizer)(texts)
    wanted, _ = pipe.encode_prompt(texts, "cpu", 1, do_classifier_free_guidance=False)
    assert states.shape == (3, 77, 32)
    assert torch.equal(states, wanted)
    # The last hidden state after the final norm, and end tokens as pads, told apart from what they could be instead.
    ids = pipe.tokenizer(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids
    assert (ids[1, 1:] == pipe.tokenizer.eos_token_id).all()
    inner = pipe.text_encoder(ids, output_hidden_states=True).hidden_states[-1]
    assert torch.allclose(states, pipe.text_encoder.final_layer_norm(inner), atol=1e-6)
    assert not torch.allclose(states, inner, atol=1e-2)
    model, tokenizer = tiny_clip()
    conditioner = Conditioner(model.text_model.train(), tokenizer)
    assert not conditioner.text_encoder.training
    assert not any(parameter.requires_grad for parameter in conditioner.text_encoder.parameters())


def squared_cosine(timestep: int) -> float:
    """Share of signal power after `timestep` + 1 of 1000 steps of the squared-cosine schedule, by its closed form."""
    f = [math.cos((t + 0.008) / 1.008 * math.pi / 2) ** 2 for t in (0.0, (timestep + 1) / 1000)]
    return f[1] / f[0]


def test_sampling_starts_at_the_last_timestep_where_no_signal_is_left():
    scheduler = new_scheduler()
    scheduler.set_timesteps(20)
    assert scheduler.timesteps.tolist() == list(range(999, 0, -50))
    assert scheduler.alphas_cumprod[999] < 1e-6
    assert scheduler.alphas_cumprod[500].item() == pytest.approx(squared_cosine(500), rel=1e-4)
    assert scheduler.final_alpha_cumprod == 1.0
    assert scheduler.config.prediction_type == "v_prediction"
    assert not scheduler.config.clip_sample


def test_the_loss_is_the_squared_error_of_v_at_the_timesteps_drawn():
    unet = new_unet(0, latent_channels=4, text_width=8, widths=(16, 32)).eval()
    torch.manual_seed(1)
    latents, states = torch.randn(3, 4, 6, 6), torch.randn(3, 77, 8)
    with torch.no_grad():
        loss = denoising_loss(unet, new_scheduler(), latents, states, torch.Generator().manual_seed(7))
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(latents.shape, generator=generator)
        timesteps = [round(float(u) ** 0.6 * 999) for u in torch.rand(3, generator=generator)]
        total = 0.0
        for index, timestep in enumerate(timesteps):
            signal, rest = math.sqrt(squared_cosine(timestep)), math.sqrt(1 - squared_cosine(timestep))
            noisy = signal * latents[index] + rest * noise[index]
            with torch.autocast("cpu", dtype=torch.bfloat16):
                out = unet(noisy[None], timestep, encoder_hidden_states=states[index : index + 1]).sample[0].float()
            total += (out - (signal * noise[index] - rest * latents[index])).square().mean().item() / 3
    assert loss.item() == pytest.approx(total, rel=5e-3)  # bf16 in the network


def test_a_finished_folder_replaces_an_older_one_and_nothing_else_stays(tmp_path):
    for number in (1, 2):
        fresh = tmp_path / "models.tmp"
        fresh.mkdir()
        (fresh / f"file-{number}").touch()
        put_in_place(fresh, tmp_path / "models")
        assert [path.name for path in tmp_path.iterdir()] == ["models"]
        assert [path.name for path in (tmp_path / "models").iterdir()] == [f"file-{number}"]
    with pytest.raises(FileNotFoundError):
        put_in_place(tmp_path / "nothing", tmp_path / "fresh")
