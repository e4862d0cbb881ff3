"""Hard negatives: passages that a retriever mistakes for the answer."""
