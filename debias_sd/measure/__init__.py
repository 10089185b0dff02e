"""Measuring text encoders: retrieval, what is read by place, pictures; and the reports of all three."""
