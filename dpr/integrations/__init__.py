"""Integrations with other libraries; each module has one library, imported through dpr.core.machine."""
