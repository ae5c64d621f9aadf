"""Retrieval: ingestion, search, and the passages put before the model."""
