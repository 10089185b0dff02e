"""Checkpoints of CLIP in other people's formats: read into an encoder folder, and written out of one."""
