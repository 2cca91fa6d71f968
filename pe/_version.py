"""The version of the package, for those below it that may not import the package itself."""

__version__ = "0.1.0"
