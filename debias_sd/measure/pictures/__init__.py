"""Generation measured on prompts of any kind: pictures of several encoders on the same seeds, sentence by sentence."""
