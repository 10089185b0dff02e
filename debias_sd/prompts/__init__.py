"""A prompt of any length: read from a file, taken apart, cut into windows, encoded as its pipeline takes it."""
