"""Embedding of corpora: a part of a corpus becomes a vector shard, by one process or several, resumable."""
