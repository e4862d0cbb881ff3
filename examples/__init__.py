"""What the quickstart runs."""
