"""Vectors with ids, titles, texts and metadata, in the formats of vector stores."""
