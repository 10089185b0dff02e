"""Tiny stock pipelines of every family, with the vocabularies, pads and old end ids of the real ones: milliseconds.

The widths differ from encoder to encoder, as those of the real ones do. The first encoder of each family is 32 wide
(Stable Diffusion 2: 64), so `tiny_encoder()` fits it.
"""

import re
import string
from collections.abc import Callable

import torch
from diffusers import (
    AnimateDiffPipeline,
    AutoencoderKL,
    ControlNetModel,
    DDIMScheduler,
    DiffusionPipeline,
    FlowMatchEulerDiscreteScheduler,
    FluxPipeline,
    FluxTransformer2DModel,
    MotionAdapter,
    SD3Transformer2DModel,
    StableDiffusion3Pipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionPipeline,
    StableDiffusionXLImg2ImgPipeline,
    StableDiffusionXLPipeline,
    UNet2DConditionModel,
)
from diffusers.models.attention_processor import IPAdapterAttnProcessor
from diffusers.models.embeddings import ImageProjection
from PIL import Image
from tiny import END, LONG_PROMPT, WIDTH, text_config, tiny_sd_pipeline, tiny_text_encoder, tiny_tokenizer
from transformers import (
    CLIPImageProcessor,
    CLIPTextConfig,
    CLIPTextModelWithProjection,
    CLIPVisionConfig,
    CLIPVisionModelWithProjection,
    T5Config,
    T5EncoderModel,
    T5TokenizerFast,
)

from debias_sd.encoder import TextEncoder

WIDTH_2 = 48  # of the second CLIP encoder
PROJECTION_2 = 24  # of its pooled vector
WIDTH_SD2 = 64
WIDTH_T5 = 96  # Stable Diffusion 3 pads the joined CLIP states to it
TIME = 8  # of one number among the conditions of SDXL
SIDE = 32  # of the pictures of `draw_family`, in pixels


def tiny_projected_encoder(
    length: int = 77, *, width: int = WIDTH_2, projection: int = PROJECTION_2, seed: int = 2, eos_token_id: int = 2
) -> CLIPTextModelWithProjection:
    torch.manual_seed(seed)
    config = text_config(length, width=width, eos_token_id=eos_token_id) | {"projection_dim": projection}
    model = CLIPTextModelWithProjection(CLIPTextConfig(**config))
    embeddings = model.text_model.embeddings
    torch.nn.init.normal_(embeddings.token_embedding.weight, std=0.5)  # as in tiny.py: else all texts are nearly equal
    torch.nn.init.normal_(embeddings.position_embedding.weight, std=0.2)
    torch.nn.init.normal_(model.text_projection.weight, std=0.2)
    return model.eval()


def second_encoder(*, length: int = 248, projection: int = PROJECTION_2) -> TextEncoder:
    """One that fits the second CLIP slot of SDXL and Stable Diffusion 3."""
    model = tiny_projected_encoder(length, projection=projection, seed=12, eos_token_id=END)
    return TextEncoder(model.text_model, tiny_tokenizer(length), projection=model.text_projection.weight.detach())


def tiny_t5(*, width: int = WIDTH_T5, seed: int = 3) -> T5EncoderModel:
    torch.manual_seed(seed)
    config = T5Config(
        vocab_size=len(t5_tokenizer()), d_model=width, d_kv=4, d_ff=37, num_layers=2, num_heads=4,
        relative_attention_num_buckets=8, feed_forward_proj="gated-gelu", is_encoder_decoder=False, use_cache=False,
        tie_word_embeddings=False,
    )  # fmt: skip
    return T5EncoderModel(config).eval()


def t5_tokenizer(model_max_length: int = 512) -> T5TokenizerFast:
    """A real T5 tokenizer whose pieces are characters and the words of `LONG_PROMPT`."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(letter, -4.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    pieces += [(f"▁{word}", -6.0) for word in sorted(set(re.findall("[A-Za-z]+", LONG_PROMPT)))]
    return T5TokenizerFast(vocab=pieces, extra_ids=0, model_max_length=model_max_length)


def _unet(cross_attention_dim: int, *, in_channels: int = 4, seed: int = 4, **more: object) -> UNet2DConditionModel:
    torch.manual_seed(seed)
    return UNet2DConditionModel(
        block_out_channels=(4, 8), layers_per_block=1, sample_size=SIDE, in_channels=in_channels, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=cross_attention_dim, norm_num_groups=2, **more,
    ).eval()  # fmt: skip


def _sdxl_unet(cross_attention_dim: int, *, numbers: int) -> UNet2DConditionModel:
    return _unet(
        cross_attention_dim, addition_embed_type="text_time", addition_time_embed_dim=TIME, use_linear_projection=True,
        projection_class_embeddings_input_dim=numbers * TIME + PROJECTION_2, transformer_layers_per_block=(1, 2),
    )  # fmt: skip


def _vae(latent_channels: int = 4, *, seed: int = 5, **more: object) -> AutoencoderKL:
    torch.manual_seed(seed)
    return AutoencoderKL(
        block_out_channels=(4, 8), in_channels=3, out_channels=3, latent_channels=latent_channels, norm_num_groups=2,
        down_block_types=("DownEncoderBlock2D", "DownEncoderBlock2D"),
        up_block_types=("UpDecoderBlock2D", "UpDecoderBlock2D"), **more,
    ).eval()  # fmt: skip


def _ddim() -> DDIMScheduler:
    """SDXL comes with Euler's, which calls numpy in a way that warns."""
    return DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    )  # fmt: skip


def _quiet(pipe: DiffusionPipeline) -> DiffusionPipeline:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def tiny_sd2() -> StableDiffusionPipeline:
    """Another width than SD 1.x and pads of id 0."""
    return tiny_sd_pipeline(width=WIDTH_SD2, pad_token="!")


def tiny_sdxl() -> StableDiffusionXLPipeline:
    return _quiet(
        StableDiffusionXLPipeline(
            vae=_vae(),
            text_encoder=tiny_text_encoder(77, seed=1, eos_token_id=2),
            text_encoder_2=tiny_projected_encoder(),
            tokenizer=tiny_tokenizer(),
            tokenizer_2=tiny_tokenizer(pad_token="!"),
            unet=_sdxl_unet(WIDTH + WIDTH_2, numbers=6),
            scheduler=_ddim(),
            force_zeros_for_empty_prompt=True,
            add_watermarker=False,
        )
    )


def tiny_sdxl_refiner() -> StableDiffusionXLImg2ImgPipeline:
    return _quiet(
        StableDiffusionXLImg2ImgPipeline(
            vae=_vae(),
            text_encoder=None,
            text_encoder_2=tiny_projected_encoder(),
            tokenizer=None,
            tokenizer_2=tiny_tokenizer(pad_token="!"),
            unet=_sdxl_unet(WIDTH_2, numbers=5),
            scheduler=_ddim(),
            requires_aesthetics_score=True,
            force_zeros_for_empty_prompt=False,
            add_watermarker=False,
        )
    )


def tiny_sd3(*, t5: bool = True) -> StableDiffusion3Pipeline:
    """Its first encoder has the identity as projection, as the real one has."""
    first = tiny_projected_encoder(width=WIDTH, projection=WIDTH, seed=1)
    torch.nn.init.eye_(first.text_projection.weight)
    torch.manual_seed(6)
    transformer = SD3Transformer2DModel(
        sample_size=SIDE, patch_size=1, in_channels=4, out_channels=4, num_layers=1, attention_head_dim=8,
        num_attention_heads=4, caption_projection_dim=32, joint_attention_dim=WIDTH_T5,
        pooled_projection_dim=WIDTH + PROJECTION_2,
    )  # fmt: skip
    return _quiet(
        StableDiffusion3Pipeline(
            transformer=transformer.eval(),
            scheduler=FlowMatchEulerDiscreteScheduler(shift=3.0),
            vae=_vae(use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5305),
            text_encoder=first,
            tokenizer=tiny_tokenizer(),
            text_encoder_2=tiny_projected_encoder(),
            tokenizer_2=tiny_tokenizer(pad_token="!"),
            text_encoder_3=tiny_t5() if t5 else None,
            tokenizer_3=t5_tokenizer() if t5 else None,
        )
    )


def tiny_flux() -> FluxPipeline:
    torch.manual_seed(7)
    transformer = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=WIDTH_T5, pooled_projection_dim=WIDTH, axes_dims_rope=(4, 4, 8),
    )  # fmt: skip
    return _quiet(
        FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(),
            vae=_vae(1, use_quant_conv=False, use_post_quant_conv=False, shift_factor=0.0609, scaling_factor=1.5035),
            text_encoder=tiny_text_encoder(77, seed=1, eos_token_id=2),
            tokenizer=tiny_tokenizer(),
            text_encoder_2=tiny_t5(),
            tokenizer_2=t5_tokenizer(),
            transformer=transformer.eval(),
        )
    )


FAMILIES: dict[str, Callable[[], DiffusionPipeline]] = {
    "sd": tiny_sd_pipeline,
    "sd2": tiny_sd2,
    "sdxl": tiny_sdxl,
    "refiner": tiny_sdxl_refiner,
    "sd3": tiny_sd3,
    "flux": tiny_flux,
}


def picture() -> Image.Image:
    return Image.new("RGB", (SIDE, SIDE), (200, 40, 40))


def draw_family(pipe: DiffusionPipeline, **inputs: object) -> torch.Tensor:
    """Two steps from one seed with a pipeline of any family: (batch, 3, 32, 32)."""
    if isinstance(pipe, StableDiffusionXLImg2ImgPipeline):
        inputs = {"image": picture(), "strength": 1.0} | inputs
    else:
        inputs = {"height": SIDE, "width": SIDE} | inputs
    generator = torch.Generator().manual_seed(0)
    return pipe(**inputs, num_inference_steps=2, generator=generator, output_type="pt").images


def tiny_controlnet_pipeline() -> StableDiffusionControlNetPipeline:
    torch.manual_seed(8)
    controlnet = ControlNetModel(
        block_out_channels=(4, 8), layers_per_block=1, in_channels=4, cross_attention_dim=WIDTH, norm_num_groups=2,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), conditioning_embedding_out_channels=(2, 4),
    ).eval()  # fmt: skip
    for parameter in controlnet.parameters():  # its last layers start at zero, where it changes nothing
        torch.nn.init.normal_(parameter, std=0.1)
    parts = tiny_sd_pipeline().components
    return _quiet(StableDiffusionControlNetPipeline(**parts, controlnet=controlnet, requires_safety_checker=False))


def tiny_animatediff() -> AnimateDiffPipeline:
    torch.manual_seed(9)
    adapter = MotionAdapter(
        block_out_channels=(4, 8), motion_layers_per_block=1, motion_norm_num_groups=2, motion_num_attention_heads=2
    )
    parts = tiny_sd_pipeline().components
    del parts["safety_checker"]
    return _quiet(AnimateDiffPipeline(**parts, motion_adapter=adapter.eval()))


def tiny_instruct_pix2pix() -> StableDiffusionInstructPix2PixPipeline:
    parts = tiny_sd_pipeline().components | {"unet": _unet(WIDTH, in_channels=8)}
    return _quiet(StableDiffusionInstructPix2PixPipeline(**parts, requires_safety_checker=False))


def tiny_image_encoder() -> CLIPVisionModelWithProjection:
    torch.manual_seed(10)
    config = CLIPVisionConfig(
        hidden_size=16, intermediate_size=37, num_hidden_layers=1, num_attention_heads=2, image_size=SIDE,
        patch_size=16, projection_dim=16,
    )  # fmt: skip
    return CLIPVisionModelWithProjection(config).eval()


def tiny_ip_adapter(unet: torch.nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    """An IP-Adapter's weights for `unet`, as its files hold them: `pipe.load_ip_adapter(weights, ...)` takes them."""
    torch.manual_seed(11)
    width, layers = unet.config.cross_attention_dim, {}
    names = [name for name in unet.attn_processors if name.endswith("attn2.processor")]
    for index, name in enumerate(names):
        hidden = unet.get_submodule(name.removesuffix(".processor")).to_q.out_features
        state = IPAdapterAttnProcessor(hidden_size=hidden, cross_attention_dim=width).state_dict()
        layers |= {f"{2 * index + 1}.{key.replace('.0.', '.')}": tensor for key, tensor in state.items()}
    proj = ImageProjection(cross_attention_dim=width, image_embed_dim=16, num_image_text_embeds=4).state_dict()
    renamed = {key.replace("image_embeds", "proj"): tensor for key, tensor in proj.items()}
    return {"image_proj": renamed, "ip_adapter": layers}


def add_ip_adapter(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """Give `pipe` an image encoder and a tiny IP-Adapter."""
    pipe.register_modules(
        image_encoder=tiny_image_encoder(),
        feature_extractor=CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
    )
    pipe.load_ip_adapter(tiny_ip_adapter(pipe.unet), subfolder="", weight_name="", image_encoder_folder=None)
    return pipe
