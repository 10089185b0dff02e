"""The app: one prompt through several text encoders, side by side in a browser. `python -m app` starts it."""
