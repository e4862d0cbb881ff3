"""Every file the toolkit reads or writes, one module each, both ways."""
