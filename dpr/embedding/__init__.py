"""Many texts -> many vectors: a part of a corpus into a vector shard, by one process or several,
resumable."""
