"""Plugins: limits, a fair queue, usage, filters and model sources."""
