"""Files of the original DPR, read and written."""
