"""What makes towers fast: packing, kernels, compiled layers. Vectors are defined in ``dpr.models``; nothing here changes them."""

from dpr.models.fast.packed import Capabilities, accelerate, packed_vectors

__all__ = ["Capabilities", "accelerate", "packed_vectors"]
