"""Swapped pipelines are stock pipelines, and the base stays what it was."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from diffusers import (
    DiffusionPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionPipeline,
)
from PIL import Image
from tiny import END, LONG_PROMPT, START, draw, save_clip_model, tiny_encoder, tiny_sd_pipeline, tiny_tokenizer

from debias_sd import encode_prompt
from debias_sd.encoder import TextEncoder
from debias_sd.pipelines.load import load_debias_pipeline, with_text_encoder

SHORT = "a red cat"


@pytest.fixture(scope="module")
def base():
    return tiny_sd_pipeline()


@pytest.fixture(scope="module")
def pipe(base):
    return with_text_encoder(base, tiny_encoder())


@pytest.fixture(scope="module")
def base_folder(base, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    base.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoders") / "long"
    tiny_encoder().save(folder)
    return folder


def test_the_result_is_a_stock_pipeline_that_reads_248(base, pipe):
    assert type(pipe) is StableDiffusionPipeline
    assert pipe.tokenizer.model_max_length == 248
    assert pipe.encode_prompt(LONG_PROMPT, "cpu", 1, True)[0].shape == (1, 248, 32)
    assert pipe.unet is base.unet
    assert pipe.vae is base.vae
    assert pipe.config.requires_safety_checker is False
    assert draw(pipe, prompt=LONG_PROMPT).shape == (1, 3, 64, 64)


@pytest.mark.parametrize("place", [80, 150, 240])
def test_a_word_far_behind_77_changes_the_picture(base, pipe, place):
    words = ["cat"] * 240
    other = [*words[: place - 1], "dog", *words[place:]]
    first, second = (draw(pipe, prompt=" ".join(text)) for text in (words, other))
    assert not torch.equal(first, second)
    assert torch.equal(draw(base, prompt=" ".join(words)), draw(base, prompt=" ".join(other)))


def test_the_base_pipeline_stays_bit_identical():
    base = tiny_sd_pipeline()
    before = draw(base, prompt=SHORT)
    state = {name: tensor.clone() for name, tensor in base.text_encoder.state_dict().items()}
    config = base.text_encoder.config.to_dict()
    pipe = with_text_encoder(base, tiny_encoder())
    draw(pipe, prompt=LONG_PROMPT)
    assert torch.equal(draw(base, prompt=SHORT), before)
    assert base.tokenizer.model_max_length == 77
    assert base.text_encoder.config.to_dict() == config
    assert not hasattr(base.text_encoder, "text_model")
    assert all(torch.equal(tensor, state[name]) for name, tensor in base.text_encoder.state_dict().items())
    assert pipe.scheduler is not base.scheduler


def test_the_encoder_object_stays_as_it_was_and_follows_the_pad_and_dtype_of_the_base():
    base = tiny_sd_pipeline(pad_token="!")
    encoder = tiny_encoder()
    pipe = with_text_encoder(base, encoder)
    assert (pipe.tokenizer.pad_token_id, encoder.tokenizer.pad_token_id) == (0, END)
    assert pipe.tokenizer(SHORT, padding="max_length").input_ids[-1] == 0
    assert (encoder.model.config.pad_token_id, pipe.text_encoder.config.pad_token_id) == (1, 0)
    shared = zip(pipe.text_encoder.parameters(), encoder.model.parameters(), strict=True)
    assert all(own.data_ptr() == given.data_ptr() for own, given in shared)
    base = tiny_sd_pipeline().to(torch.float16)
    encoder = tiny_encoder()
    pipe = with_text_encoder(base, encoder)
    assert pipe.text_encoder.dtype == base.unet.dtype == torch.float16
    assert encoder.model.dtype == torch.float32
    assert encode_prompt(pipe, SHORT)["prompt_embeds"].dtype == torch.float16


@pytest.mark.parametrize("kind", [StableDiffusionImg2ImgPipeline, StableDiffusionInpaintPipeline])
def test_siblings_are_swapped_too(kind):
    base = kind(**tiny_sd_pipeline().components, requires_safety_checker=False)
    pipe = with_text_encoder(base, tiny_encoder())
    assert type(pipe) is kind
    assert pipe.tokenizer.model_max_length == 248
    picture = Image.new("RGB", (64, 64), "red")
    inputs = {"image": picture} | ({"mask_image": picture} if kind is StableDiffusionInpaintPipeline else {})
    embeddings = encode_prompt(pipe, LONG_PROMPT, "blurry, " * 300)
    assert draw(pipe, strength=1.0, **inputs, **embeddings).shape == (1, 3, 64, 64)


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_clip_skip_equals_the_computation_by_hand(pipe, skip):
    given = pipe.encode_prompt(SHORT, "cpu", 1, False, clip_skip=skip)[0]
    ids = pipe.tokenizer(SHORT, padding="max_length", return_tensors="pt").input_ids
    states = pipe.text_encoder(ids, output_hidden_states=True).hidden_states
    assert torch.equal(given, pipe.text_encoder.final_layer_norm(states[-(skip + 1)]))
    assert draw(pipe, prompt=SHORT, clip_skip=skip).shape == (1, 3, 64, 64)


def test_what_clip_skip_needs_adds_no_weights_and_survives_copies(base):
    # A fresh one: what transformers hangs on a model at its first `output_hidden_states` cannot be pickled.
    pipe = with_text_encoder(base, tiny_encoder())
    model = pipe.text_encoder
    names = [name for name, _ in model.named_modules()]
    assert not any(name.startswith("text_model") for name in [*names, *model.state_dict()])
    expected = None
    for own in (pickle.loads(pickle.dumps(model)), model, copy.deepcopy(model)):
        img2img = StableDiffusionImg2ImgPipeline(
            **pipe.components | {"text_encoder": own}, requires_safety_checker=False
        )
        states = img2img.encode_prompt(SHORT, "cpu", 1, False, clip_skip=1)[0]
        assert states.shape == (1, 248, 32)
        assert expected is None or torch.equal(states, expected)
        expected = states


def test_nothing_stays_behind_that_clip_skip_needs(base):
    """Case 116: a call for all layers leaves no attribute on the model, and two threads read right, 60 of 60."""
    pipe = with_text_encoder(base, tiny_encoder())
    pipe.text_encoder(torch.tensor([[START, 320, END]]), output_hidden_states=True)  # hooks of transformers' own
    before = set(vars(pipe.text_encoder))

    def read(_: int) -> torch.Tensor:
        with torch.no_grad():
            return pipe.encode_prompt(SHORT, "cpu", 1, False, clip_skip=1)[0]

    expected = read(0)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(read, range(60)))
    assert [one.shape for one in found] == [expected.shape] * 60
    for one in found:
        torch.testing.assert_close(one, expected)
    assert set(vars(pipe.text_encoder)) == before
    assert type(base.text_encoder).__mro__[0] is not type(pipe.text_encoder)
    assert not hasattr(base.text_encoder, "text_model")


def test_clip_skip_of_a_compiled_encoder(base):
    pipe = with_text_encoder(base, tiny_encoder())
    expected = [pipe.encode_prompt(SHORT, "cpu", 1, False, clip_skip=skip)[0] for skip in (1, 2)]
    pipe.text_encoder = torch.compile(pipe.text_encoder, backend="eager", fullgraph=True)
    for skip, states in zip((1, 2), expected, strict=True):
        torch.testing.assert_close(pipe.encode_prompt(SHORT, "cpu", 1, False, clip_skip=skip)[0], states)


def test_swapping_again_after_reading_back_gives_clip_skip_again(pipe, tmp_path):
    pipe.save_pretrained(tmp_path)
    again = load_debias_pipeline(tmp_path, "base")
    expected = pipe.encode_prompt(SHORT, "cpu", 1, False, clip_skip=1)[0]
    assert torch.equal(again.encode_prompt(SHORT, "cpu", 1, False, clip_skip=1)[0], expected)


def test_loading_from_folders(base_folder, encoder_dir):
    pipe = load_debias_pipeline(base_folder, encoder_dir)
    assert (type(pipe).__name__, pipe.tokenizer.model_max_length) == ("StableDiffusionPipeline", 248)
    own = load_debias_pipeline(str(base_folder), "base", torch_dtype=torch.float16)
    assert own.tokenizer.model_max_length == 77
    assert own.unet.dtype == own.text_encoder.dtype == torch.float16
    assert own.encode_prompt(SHORT, "cpu", 1, False, clip_skip=1)[0].shape == (1, 77, 32)


def test_what_does_not_fit_a_pipeline_is_told(base, tmp_path):
    save_clip_model(tmp_path)
    with pytest.raises(ValueError, match=r"has 77 positions but needs 248; lengthen it with stretch\(\)"):
        with_text_encoder(base, tmp_path)
    assert with_text_encoder(base, tmp_path, min_positions=77).tokenizer.model_max_length == 77
    with pytest.raises(ValueError, match="is 64 wide and text_encoder of this base is 32 wide"):
        with_text_encoder(base, tiny_encoder(width=64))
    with pytest.raises(ValueError, match="reads 77 tokens, its encoder has 248 positions"):
        with_text_encoder(base, TextEncoder(tiny_encoder().model, tiny_tokenizer(77)))
    other = TwoEncoders(base.text_encoder, base.text_encoder, base.tokenizer, base.unet)
    for call in (lambda: with_text_encoder(other, tiny_encoder()), lambda: encode_prompt(other, SHORT)):
        with pytest.raises(ValueError, match="TwoEncoders is of another family"):
            call()
    base = tiny_sd_pipeline()
    base.tokenizer.add_tokens(["<pad>"])
    base.tokenizer.pad_token = "<pad>"
    base.text_encoder.resize_token_embeddings(END + 2)
    with pytest.raises(ValueError, match="has the added token '<pad>', which the encoder lacks"):
        with_text_encoder(base, tiny_encoder())
    base = tiny_sd_pipeline()
    base.unet._hf_hook = object()
    with pytest.raises(ValueError, match="offloaded already"):
        with_text_encoder(base, tiny_encoder())


class TwoEncoders(DiffusionPipeline):
    def __init__(self, text_encoder, text_encoder_2, tokenizer, unet):
        super().__init__()
        self.register_modules(text_encoder=text_encoder, text_encoder_2=text_encoder_2, tokenizer=tokenizer, unet=unet)
