"""The version of the toolkit."""

__version__ = "0.2.0"
