"""Embedding of corpora: one or several processes encode a part of a corpus into a vector shard, resumably."""
