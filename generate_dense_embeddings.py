#!/usr/bin/env python3
"""The original's name for ``generate_embeddings.py``."""

from dpr.cli.main import run

if __name__ == "__main__":
    run("embed")
