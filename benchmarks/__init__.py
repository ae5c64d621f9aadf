"""Measurements, run by ``make bench`` or ``python -m benchmarks NAME``; docs/benchmarks.md says what they gave."""
