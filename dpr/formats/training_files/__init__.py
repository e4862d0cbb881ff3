"""Training data in many formats, read as a stream of samples, and written if the format holds everything that
training needs."""
