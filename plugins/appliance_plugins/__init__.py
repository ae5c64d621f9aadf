"""Plugins: limits, filters and model sources."""
