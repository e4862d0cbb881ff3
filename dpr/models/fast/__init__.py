"""What makes towers quick: packing, kernels, compiled layers. Vectors are defined in the package above; nothing here changes them."""

from dpr.models.fast.door import Capabilities, accelerate
from dpr.models.fast.packed import packed_vectors

__all__ = ["Capabilities", "accelerate", "packed_vectors"]
