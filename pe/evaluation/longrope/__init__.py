"""LongRoPE's evolutionary search for the factors of a trained model."""
