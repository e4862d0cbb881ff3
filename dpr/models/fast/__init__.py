"""Packing and kernels that make towers fast, without changing the vectors, which ``dpr.models`` defines."""
