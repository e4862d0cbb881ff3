"""Questions to rankings with texts: what ``dpr retrieve`` and ``dpr search`` do."""
