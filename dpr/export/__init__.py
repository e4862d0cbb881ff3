"""Export of trained models to formats of other programs."""
