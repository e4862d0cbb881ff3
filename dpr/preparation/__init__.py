"""Text to training data: pairs from docstrings, near-duplicates, splits, hard negatives, a vocabulary for an encoder of one's own."""
