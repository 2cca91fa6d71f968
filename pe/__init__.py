"""Positional encodings for Transformers."""
