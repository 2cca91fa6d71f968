"""What all tasks share: random draws, layouts, scores, the registry."""
