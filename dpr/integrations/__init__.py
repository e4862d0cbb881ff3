"""Bridges to libraries that call the toolkit: each module is one library, imported through
dpr.core.machine."""
