"""Every setting as a plain typed dataclass: its unit, the reason for its default, and its check."""
