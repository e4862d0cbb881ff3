"""Speed and memory, measured as ratios inside one run. Never run as tests; ``make bench`` prints the
tables."""
