#!/usr/bin/env python3
"""``generate_embeddings.py`` under its name in the original DPR."""

from dpr.cli.main import run

if __name__ == "__main__":
    run("embed")
