"""Bridges to libraries that call us: each module is one library, imported through dpr.core.machine."""
