"""Train an encoder on your own pictures: python examples/train_on_pictures.py CLIP PICTURES OUT [--OPTION VALUE ...].

CLIP is the folder or Hub repo id of a CLIP with both towers, PICTURES a folder with metadata.jsonl or a text file
beside each picture; docs/training.md lists the options. For several processes put `accelerate launch` in front.
"""

import sys

from train_encoder.__main__ import main

clip, pictures, out, *options = sys.argv[1:]
names = ["--pretrained_model_name_or_path", clip, "--train_data", pictures, "--output_dir", out]
sys.exit(main(["--recipe", "debias", *names, *options]))
