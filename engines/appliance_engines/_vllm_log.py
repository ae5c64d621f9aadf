"""Says in one line why vLLM did not start, from what it wrote in its log."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from appliance.plugin import ModelSpec, log_tail

__all__ = ["explain"]

_TAIL_BYTES = 256 * 1024
_EXCEPTION = re.compile(r"\b(?:[a-z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Exit)): (.+)")
_USAGE = re.compile(r"api_server\.py: error: (.+)")
_INVALID = re.compile(
    r"validation errors? for \w+\n(?P<told>.+?)(?: \[type=|\n *For further information|\Z)", re.DOTALL
)
"""pydantic says what is wrong below its error, and before it the field, where it is one field."""
_PREFIX = re.compile(r"^\(\w+ pid=\d+\) (?:[A-Z]+ \S+ \S+ \[[^\]]*\] ?)?", re.MULTILINE)
_CONSEQUENCES = ("Engine core initialization failed", "WorkerProc initialization failed", "cancelled")
"""What vLLM's outer processes say when an inner one failed; the cause stands above."""
_FIXES = (
    ("VLLM_CPU_KVCACHE_SPACE", "lower options.cpu_kv_cache_gib"),
    ("Free memory on device", "lower options.gpu_memory_utilization, or end what else uses the card"),
    ("No available memory for the cache", "raise options.gpu_memory_utilization or lower options.max_model_len"),
    ("KV cache is needed", "lower options.max_model_len or raise the memory for the cache"),
    ("max_model_len", "lower options.max_model_len"),
    ("out of memory", "lower options.gpu_memory_utilization or choose a smaller model"),
    ("trust_remote_code", "if you trust the model's code, set options.trust_remote_code"),
    ("unrecognized arguments", "correct extra_args"),
)


def explain(spec: ModelSpec, log: Path, message: str) -> str:
    """The cause found in the log with its fix, or ``message`` when the log shows none."""
    cause = _cause(log_tail(log, _TAIL_BYTES))
    if cause is None:
        return message
    fix = next((f"; {spec.where}: {fix}" for sign, fix in _FIXES if sign in cause), "")
    return f"the model {spec.name} did not start: {cause}{fix}; its log is {log}"


def _cause(text: str) -> str | None:
    """The last error that is not merely the consequence of another."""
    plain = _PREFIX.sub("", text)
    found = None
    for line in plain.splitlines():
        match = _USAGE.search(line) or _EXCEPTION.search(line)
        if match and not any(sign in line for sign in _CONSEQUENCES):
            found = match[match.re.groups]
    if found and "validation error" in found and (invalid := [*_INVALID.finditer(plain)]):
        found = invalid[-1]["told"].replace("Value error, ", "")
    return textwrap.shorten(found, 300, placeholder=" ...") if found else None
