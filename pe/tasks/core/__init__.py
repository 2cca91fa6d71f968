"""What all tasks share: the base class, random numbers, scores and the registry."""
