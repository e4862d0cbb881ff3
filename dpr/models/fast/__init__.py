"""What makes towers quick: packing, kernels, compiled layers. Vectors are defined in the package above; nothing here changes them."""
