"""Stock diffusers pipelines with other text encoders: which they have, how a base is found, what fills a slot."""
