"""Retrieval: rankings with texts for questions, as in ``dpr retrieve`` and ``dpr search``."""
