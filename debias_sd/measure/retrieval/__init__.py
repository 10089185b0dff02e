"""Retrieval on standard sets and users' own: a dual encoder, records and probes in, ranks with intervals out."""
