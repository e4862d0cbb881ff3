"""Vectors or words to nearest neighbours: exact search, faiss, BM25, and the fusion of two rankings."""
