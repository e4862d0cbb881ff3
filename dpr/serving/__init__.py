"""``dpr serve``: an HTTP service in front of worker processes that search."""
