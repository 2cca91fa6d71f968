"""Training: recipe, schedule, checkpoint, trainer."""
