"""The towers that are trained: loaded, stretched, read."""
