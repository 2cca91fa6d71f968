"""The version of the package, for its modules, which must not import the package itself."""

__version__ = "0.1.0"
