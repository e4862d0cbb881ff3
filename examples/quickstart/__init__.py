"""The quickstart: python -m examples.quickstart."""
