"""Engines: vLLM as a supervised child process, and remote OpenAI-compatible servers."""
