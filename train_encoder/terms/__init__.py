"""The terms of the loss: the contrast of all pairs, and terms that look at one pair at a time."""
