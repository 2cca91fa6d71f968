"""Measurements: models trained on tasks, and what attention logits say about positions."""
