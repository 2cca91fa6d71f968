"""What encodings share: the base class, the registry, frequencies, checks."""
