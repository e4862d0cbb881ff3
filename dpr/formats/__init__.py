"""One module for each file format that the toolkit reads or writes, in both directions."""
