"""Usage by day."""
