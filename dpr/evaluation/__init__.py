"""Rankings to numbers: answer matching, ranking metrics, plain-text tables."""
