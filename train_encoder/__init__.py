"""Training of text encoders with two captions per image: `accelerate launch -m train_encoder --config FILE.yaml`.

A leaf of the project: it imports `debias_sd`, nothing imports it. Method: DeBias-CLIP (arXiv 2602.22419), with
Long-CLIP's recipe (arXiv 2403.15378) as the baseline and plain contrastive pre-training for the shipped base.
"""
