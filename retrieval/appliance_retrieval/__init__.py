"""Retrieval: vector stores, embedders, parsers and chunkers."""
