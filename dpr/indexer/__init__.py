"""Indexes, which find the nearest neighbours of vectors or words: exact search, faiss, BM25, and the fusion
of two rankings."""
