"""Code that the encodings share: base classes, registry, specs, frequencies and checks."""
