"""The embedded world's UNet: a stock `UNet2DConditionModel` on 6 x 6 latents, conditioned as SD 1.x is on CLIP.

Cross-attention reads the text encoder's last hidden state (after the final norm) at all 77 positions, pads included;
there is no position embedding for the picture and no mask over the pads, as in Stable Diffusion. Three transformer
layers a block are what makes the binding of place, colour and shape take off at this size (`docs/log.md`).
"""

from __future__ import annotations

import random

import torch
from diffusers import DDIMScheduler, UNet2DConditionModel

from debias_sd.shapes.caption import Caption, opening_caption, sentence_caption, tag_caption
from debias_sd.shapes.scene import Scene, random_scene

LATENT_SIDE = 6


def new_unet(seed: int, *, latent_channels: int, text_width: int, widths: tuple[int, int]) -> UNet2DConditionModel:
    """A UNet with two levels (6 x 6 and 3 x 3) and random weights."""
    torch.manual_seed(seed)
    return UNet2DConditionModel(
        sample_size=LATENT_SIDE,
        in_channels=latent_channels,
        out_channels=latent_channels,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=widths,
        layers_per_block=1,
        transformer_layers_per_block=(2, 2),
        cross_attention_dim=text_width,
        attention_head_dim=4,
        norm_num_groups=16,
    )


def new_scheduler() -> DDIMScheduler:
    """Squared-cosine noise and v-prediction, which suit small latents; saved into the pipeline's folder."""
    return DDIMScheduler(
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        clip_sample=False,
        set_alpha_to_one=True,
        timestep_spacing="trailing",
        steps_offset=1,  # without effect on trailing steps; Stable Diffusion pipelines ask for it
    )


def most_things(progress: float) -> int:
    """Curriculum: the largest scene at `progress` 0..1 of the run; one thing at first, nine from two fifths on."""
    steps = ((0.05, 1), (0.12, 2), (0.2, 4), (0.3, 6), (0.4, 8))
    return next((count for until, count in steps if progress < until), 9)


def draw_scene(index: int, count: int, *, seed: int) -> Scene:
    """Scene number `index` of `count` things of the training pool."""
    return random_scene(random.Random(f"unet/{seed}/{count}/{index}"), count)


def caption_of(scene: Scene, rng: random.Random) -> Caption:
    """A caption of at most 77 tokens that names every thing of the scene, so that what is not named is not drawn.

    Up to nine things as tags; up to five or six as sentences, or as a summary with sentences, where all of it fits.
    """
    style, things = rng.random(), set(scene.things)
    if 2 <= len(things) and style < 0.4:
        caption = opening_caption(scene, rng)
    elif style < 0.75:
        caption = sentence_caption(scene, rng)
    else:
        return tag_caption(scene, rng)
    return caption if {thing for named in caption.named for thing in named} == things else tag_caption(scene, rng)
