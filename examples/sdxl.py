"""SDXL with another first encoder: python examples/sdxl.py BASE ENCODER PROMPT OUT.png.

Its second encoder is stretched to the same length; `encoder_2=` takes a trained one instead.
"""

import sys

from debias_sd import describe_encoders, load_debias_pipeline

base, encoder, prompt, out = sys.argv[1:]
pipe = load_debias_pipeline(base, encoder)
print(describe_encoders(pipe))
pipe(prompt, num_inference_steps=25).images[0].save(out)
