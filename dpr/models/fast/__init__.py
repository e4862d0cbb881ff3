"""What makes towers fast: packing and kernels. Vectors are defined in ``dpr.models``; nothing
here changes them."""
