"""Training data in the formats of others, one module each: read as a stream of samples, and written where that loses nothing it needs."""
