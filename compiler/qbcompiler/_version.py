"""The version of the compiler, in one place."""

__version__ = "0.1.0"
