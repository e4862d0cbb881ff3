"""HTTP service of ``dpr serve``, with one thread that searches."""
