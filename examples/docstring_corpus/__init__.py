"""The data of the quickstart: question and passage pairs from the docstrings of installed packages."""
