"""Training data from other formats, checks of training data, and a vocabulary for a new encoder."""
