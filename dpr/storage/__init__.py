"""Safe writing of outputs: one writer, locks, checksums, leftovers, and work that is resumed."""
