"""Another text encoder in Stable Diffusion: python examples/swap_encoder.py BASE ENCODER PROMPT OUT.png.

BASE and ENCODER are folders or Hub repo ids. The result is a stock pipeline: schedulers, LoRA and offloading work.
"""

import sys

from diffusers import DiffusionPipeline

from debias_sd import with_text_encoder

base, encoder, prompt, out = sys.argv[1:]
pipe = with_text_encoder(DiffusionPipeline.from_pretrained(base), encoder)
pipe(prompt, num_inference_steps=25).images[0].save(out)
