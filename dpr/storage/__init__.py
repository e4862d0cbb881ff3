"""What makes writing safe: one writer, locks, checksums, leftovers, and work that is resumed."""
