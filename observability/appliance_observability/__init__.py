"""Observability: traces, metrics, logs of calls."""
