"""Training: the loop, the learning rate, checkpoints, metrics, and several processes."""
