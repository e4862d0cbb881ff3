"""What makes towers fast: packing, kernels, compiled layers. Vectors are defined in ``dpr.models``; nothing
here changes them."""
