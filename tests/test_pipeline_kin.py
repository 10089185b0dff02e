"""Pipelines whose parts look like Stable Diffusion's: taken where their text is read the same way, else refused."""

import pytest
import torch
from diffusers import (
    EulerDiscreteScheduler,
    I2VGenXLPipeline,
    I2VGenXLUNet,
    StableDiffusionLatentUpscalePipeline,
    UniDiffuserModel,
    UniDiffuserPipeline,
    UniDiffuserTextDecoder,
)
from tiny import LONG_PROMPT, WIDTH, tiny_encoder, tiny_sd_pipeline, tiny_text_encoder, tiny_tokenizer
from tiny_pipelines import picture
from transformers import CLIPImageProcessor, CLIPVisionConfig, CLIPVisionModelWithProjection

from debias_sd import count_tokens, describe_encoders, encode_prompt, load_debias_pipeline, with_text_encoder

SIZE = {"crop_size": {"height": 32, "width": 32}, "size": {"shortest_edge": 32}}


def image_encoder() -> CLIPVisionModelWithProjection:
    """Its vectors are as wide as the states of the text, beside which they stand."""
    torch.manual_seed(10)
    config = CLIPVisionConfig(
        hidden_size=16, intermediate_size=37, num_hidden_layers=1, num_attention_heads=2, image_size=32, patch_size=16,
        projection_dim=WIDTH,
    )  # fmt: skip
    return CLIPVisionModelWithProjection(config).eval()


def tiny_i2vgen() -> I2VGenXLPipeline:
    """Films from a picture and a text."""
    torch.manual_seed(11)
    unet = I2VGenXLUNet(
        block_out_channels=(4, 8), layers_per_block=1, sample_size=32, norm_num_groups=2, attention_head_dim=2,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"), up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
        cross_attention_dim=WIDTH,
    )  # fmt: skip
    parts = {name: tiny_sd_pipeline().components[name] for name in ("vae", "text_encoder", "tokenizer", "scheduler")}
    images = {"image_encoder": image_encoder(), "feature_extractor": CLIPImageProcessor(**SIZE)}
    pipe = I2VGenXLPipeline(**parts, **images, unet=unet.eval())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_unidiffuser() -> UniDiffuserPipeline:
    """Texts and pictures together; its denoiser has a place for each of 77 states."""
    torch.manual_seed(12)
    unet = UniDiffuserModel(
        text_dim=WIDTH, clip_img_dim=WIDTH, num_text_tokens=77, num_attention_heads=2, attention_head_dim=8,
        in_channels=4, out_channels=4, num_layers=1, sample_size=16, patch_size=2, use_patch_pos_embed=True,
    )  # fmt: skip
    decoder = UniDiffuserTextDecoder(77, WIDTH, prefix_hidden_dim=16, n_embd=16, n_layer=1, n_head=2, vocab_size=100)
    images = {"image_encoder": image_encoder(), "clip_image_processor": CLIPImageProcessor(**SIZE)}
    texts = {"text_encoder": tiny_text_encoder(), "clip_tokenizer": tiny_tokenizer(), "text_tokenizer": None}
    parts = {name: tiny_sd_pipeline().components[name] for name in ("vae", "scheduler")}
    return UniDiffuserPipeline(**parts, **images, **texts, unet=unet, text_decoder=decoder)


def test_films_from_a_picture_read_long_prompts():
    base = tiny_i2vgen()
    pipe = with_text_encoder(base, tiny_encoder())
    assert [(row.positions, row.origin) for row in describe_encoders(pipe)] == [(248, "given")]
    pipe._guidance_scale = 9.0
    own = pipe.encode_prompt(LONG_PROMPT, pipe.device, 1, "blurry", clip_skip=1)  # the default of its call
    embeddings = encode_prompt(pipe, LONG_PROMPT, "blurry")
    assert embeddings["prompt_embeds"].shape == (1, 248, WIDTH)
    assert torch.equal(embeddings["prompt_embeds"], own[0])
    assert torch.equal(embeddings["negative_prompt_embeds"], own[1])
    options = {"image": picture(), "height": 32, "width": 32, "num_frames": 2, "num_inference_steps": 1}
    options |= {"decode_chunk_size": 2, "output_type": "pt"}
    films = []
    for told in ({"prompt": LONG_PROMPT, "negative_prompt": "blurry"}, embeddings, encode_prompt(pipe, "a dog")):
        torch.manual_seed(0)  # the picture's latents are drawn without the generator
        films.append(pipe(**told, **options, generator=torch.Generator().manual_seed(0)).frames)
    assert torch.equal(films[0], films[1])
    assert not torch.equal(films[0], films[2])


def test_the_upscaler_takes_the_prompt_itself():
    """It reads the last states before the final norm, and a pooled vector."""
    parts = {name: tiny_sd_pipeline().components[name] for name in ("vae", "text_encoder", "tokenizer", "unet")}
    base = StableDiffusionLatentUpscalePipeline(**parts, scheduler=EulerDiscreteScheduler())
    encoder = tiny_encoder()
    pipe = with_text_encoder(base, encoder)
    states, _, pooled, _ = pipe.encode_prompt(LONG_PROMPT, pipe.device, False)
    ids = pipe.tokenizer(LONG_PROMPT, padding="max_length", truncation=True, return_tensors="pt").input_ids
    with torch.no_grad():
        expected = encoder.model(ids, output_hidden_states=True)
    assert torch.equal(states, expected.hidden_states[-1])
    assert torch.equal(pooled, expected.pooler_output)
    assert states.shape == (1, 248, WIDTH)
    sentence = (
        "^StableDiffusionLatentUpscalePipeline does not take the embeddings of Stable Diffusion; give it the prompt"
    )
    with pytest.raises(ValueError, match=sentence):
        encode_prompt(pipe, LONG_PROMPT)


@pytest.mark.parametrize("use", ["swap", "describe", "count", "encode", "load"])
def test_a_denoiser_of_77_places_is_refused(use, tmp_path):
    pipe = tiny_unidiffuser()
    uses = {
        "swap": lambda: with_text_encoder(pipe, tiny_encoder()),
        "describe": lambda: describe_encoders(pipe),
        "count": lambda: count_tokens(pipe, "a cat"),
        "encode": lambda: encode_prompt(pipe, "a cat"),
        "load": lambda: (pipe.save_config(tmp_path), load_debias_pipeline(tmp_path, tiny_encoder())),
    }
    sentence = (
        "^UniDiffuserPipeline has a text_encoder and no tokenizer, as Stable Diffusion has; give a pipeline of this"
    )
    with pytest.raises(ValueError, match=sentence) as caught:
        uses[use]()
    assert "\n" not in str(caught.value)
