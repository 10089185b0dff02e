"""Tiny random models of the embedded world: the shapes of the shipped ones, a hundredth of their size."""

from pathlib import Path

import torch
from transformers import CLIPConfig, CLIPModel, CLIPTextModel, CLIPTokenizer

from debias_sd.shapes.tokenizer import build_tokenizer

WIDTH = 32


def tiny_clip(*, window: int = 77, seed: int = 0, attention: str = "sdpa") -> tuple[CLIPModel, CLIPTokenizer]:
    """A random CLIPModel for 48 x 48 pictures with `window` text positions, and its tokenizer."""
    tokenizer = build_tokenizer(window)
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": window,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 48,
        "patch_size": 8,
    }
    torch.manual_seed(seed)
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=WIDTH))
    # CLIP's initialisation is so small that a random encoder gives nearly one vector for all texts.
    model.text_model.embeddings.token_embedding.weight.data.normal_(std=0.5)
    model.text_model.embeddings.position_embedding.weight.data.normal_(std=0.2)
    model.set_attn_implementation(attention)
    return model.eval(), tokenizer


def save_tiny_clip(folder: Path, *, window: int = 77, seed: int = 0) -> Path:
    model, tokenizer = tiny_clip(window=window, seed=seed)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_pipeline():
    """A random stock StableDiffusionPipeline: 6 x 6 latents of 16 channels, 48 x 48 pictures, 77 positions."""
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

    model, tokenizer = tiny_clip()
    text_encoder = CLIPTextModel(model.config.text_config).eval()
    text_encoder.load_state_dict(model.text_model.state_dict())
    torch.manual_seed(1)
    unet = UNet2DConditionModel(
        sample_size=6,
        in_channels=16,
        out_channels=16,
        block_out_channels=(16, 16),
        layers_per_block=1,
        norm_num_groups=8,
        cross_attention_dim=WIDTH,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    vae = AutoencoderKL(
        block_out_channels=(8, 8, 8, 8),
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=16,
        norm_num_groups=4,
        sample_size=48,
    )
    scheduler = DDIMScheduler(
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=False,
        timestep_spacing="trailing",
        steps_offset=1,
    )
    pipe = StableDiffusionPipeline(
        vae=vae,
        text_encoder=text_encoder,
        tokenizer=tokenizer,
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe
