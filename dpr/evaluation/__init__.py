"""Answer matching, ranking metrics and plain-text tables."""
