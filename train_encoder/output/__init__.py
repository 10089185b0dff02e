"""What a run leaves in its folder: checkpoints, the encoder, its card."""
