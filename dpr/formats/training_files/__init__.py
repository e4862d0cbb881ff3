"""Training data in many formats: read as a stream of samples, and written where the format holds all that
training needs."""
