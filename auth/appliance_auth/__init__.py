"""Authentication: API keys."""
