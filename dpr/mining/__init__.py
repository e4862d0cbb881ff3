"""Hard negatives: passages that a retriever takes for the answer and that are not."""
