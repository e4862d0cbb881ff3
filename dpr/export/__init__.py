"""A trained model in formats that other programs read."""
