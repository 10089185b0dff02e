"""The pairs that are read: samples, batches, kept image features, fingerprints."""
