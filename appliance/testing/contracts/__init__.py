"""Test classes that every implementation of a protocol inherits, ours and other people's."""
