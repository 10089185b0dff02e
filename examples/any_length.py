"""A prompt of any length: python examples/any_length.py BASE ENCODER PROMPT OUT.png.

It is read in windows that end where sentences end. `count_tokens` says how much of it one window
holds.
"""

import sys

from debias_sd import count_tokens, encode_prompt, load_debias_pipeline

base, encoder, prompt, out = sys.argv[1:]
pipe = load_debias_pipeline(base, encoder)
print(count_tokens(pipe, prompt))
pipe(**encode_prompt(pipe, prompt), num_inference_steps=25).images[0].save(out)
