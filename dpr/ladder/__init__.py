"""Stages that follow each other: each a command, done once, remembered, and done anew only when what it was made of has changed."""
