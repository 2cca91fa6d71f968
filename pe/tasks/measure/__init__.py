"""What needs torch: models trained on tasks, and what logits say of positions."""
