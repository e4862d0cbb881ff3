"""Training and using dense-retrieval bi-encoders."""

__version__ = "0.1.0"
