"""Packing and kernels, which make towers fast. Vectors are defined in ``dpr.models``; nothing here changes them."""
