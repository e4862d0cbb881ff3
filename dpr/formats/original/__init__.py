"""What reads and writes the files of the original DPR."""
