"""vLLM's options, command line and environment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.plugin import ConfigError, ModelSpec, convert
from appliance_engines import _vllm_command
from appliance_engines._vllm_command import VllmOptions, check_extra_args, check_installed, command, environment
from appliance_engines._vllm_log import explain

SPEC = ModelSpec(name="org/chat", where="models[0]", path=Path("/models/chat"))
SOCKET = Path("/run/a.sock")
EVERY_OPTION = VllmOptions(
    max_model_len=2048,
    dtype="bfloat16",
    quantization="fp8",
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.5,
    tensor_parallel_size=2,
    pipeline_parallel_size=2,
    max_num_seqs=16,
    max_num_batched_tokens=4096,
    enable_prefix_caching=True,
    enforce_eager=True,
    speculative={"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3},
    enable_lora=True,
    lora_modules={"style": "/adapters/style"},
    cpu_offload_gb=1.5,
    kv_transfer={"kv_connector": "OffloadingConnector", "kv_role": "kv_both"},
    reasoning_parser="qwen3",
    chat_template="/t.jinja",
    trust_remote_code=True,
    allowed_media_domains=("media.example.org", "b.example.org"),
)


def build(options: VllmOptions, *, on_cpu: bool = False, spec: ModelSpec = SPEC) -> list[str]:
    return command(spec, options, SOCKET, on_cpu=on_cpu)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def test_the_model_is_served_under_its_own_name_on_the_socket_alone() -> None:
    arguments = build(VllmOptions())
    assert arguments[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    assert value(arguments, "--model") == "/models/chat"
    assert value(arguments, "--served-model-name") == "org/chat"
    assert value(arguments, "--uds") == "/run/a.sock"
    assert not {"--host", "--port", "--api-key"} & set(arguments)


def test_what_is_not_set_is_left_to_vllm() -> None:
    arguments = build(VllmOptions())
    for flag in ("--max-model-len", "--dtype", "--speculative-config", "--enable-lora", "--trust-remote-code"):
        assert flag not in arguments
    assert "--enable-prefix-caching" not in arguments
    assert "--no-enable-prefix-caching" not in arguments


@pytest.mark.parametrize(
    ("on_cpu", "option", "flag"),
    [
        (True, None, "--enforce-eager"),
        (False, None, "--no-enforce-eager"),
        (True, False, "--no-enforce-eager"),
        (False, True, "--enforce-eager"),
    ],
)
def test_compiled_graphs_are_off_on_cpu_unless_asked_for(on_cpu: bool, option: bool | None, flag: str) -> None:
    assert flag in build(VllmOptions(enforce_eager=option), on_cpu=on_cpu)


def test_tools_are_on_by_default_and_can_be_switched_off() -> None:
    assert value(build(VllmOptions()), "--tool-call-parser") == "hermes"
    assert "--enable-auto-tool-choice" in build(VllmOptions())
    assert "--tool-call-parser" not in build(VllmOptions(enable_auto_tool_choice=False))


def test_structures_become_json_and_adapters_pairs() -> None:
    arguments = build(EVERY_OPTION)
    assert json.loads(value(arguments, "--speculative-config"))["method"] == "ngram"
    assert json.loads(value(arguments, "--kv-transfer-config"))["kv_role"] == "kv_both"
    assert value(arguments, "--lora-modules") == "style=/adapters/style"


def test_adapters_switch_lora_on() -> None:
    assert "--enable-lora" in build(VllmOptions(lora_modules={"a": "/a"}))


@pytest.mark.parametrize("options", [VllmOptions(), EVERY_OPTION])
def test_D2_vllm_may_fetch_from_no_host_whichever_the_appliance_fetches_from(options: VllmOptions) -> None:
    arguments = build(options)
    assert value(arguments, "--allowed-media-domains") == "none.invalid"
    assert arguments.count("--allowed-media-domains") == 1
    assert not [argument for argument in arguments if "example.org" in argument]


def test_extra_args_come_last() -> None:
    spec = ModelSpec(name="m", where="models[0]", path=Path("/m"), extra_args=("--seed", "7"))
    assert build(VllmOptions(), spec=spec)[-2:] == ["--seed", "7"]


@pytest.mark.parametrize(
    "flag",
    [
        *("--uds=/tmp/x", "--host", "--api_key=k", "--grpc-port", "--served-model-name"),
        *("--allowed-media-domains=a.example", "--allowed_local_media_path"),
    ],
)
def test_D2_extra_args_cannot_open_a_port_move_the_model_or_have_vllm_fetch(flag: str) -> None:
    spec = ModelSpec(name="m", where="models[3]", extra_args=("--seed", "7", flag))
    with pytest.raises(ConfigError, match=r"models\[3\]\.extra_args: --"):
        check_extra_args(spec)


@pytest.mark.model
@pytest.mark.slow
def test_the_installed_vllm_knows_every_flag() -> None:
    parse = (
        "import sys; from vllm.entrypoints.launchers.cli_args import make_arg_parser; "
        "from vllm.utils.argparse_utils import FlexibleArgumentParser; "
        "print(make_arg_parser(FlexibleArgumentParser()).parse_args(sys.argv[1:]))"
    )
    arguments = build(EVERY_OPTION)[3:]
    done = subprocess.run(
        [sys.executable, "-c", parse, *arguments], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "uds='/run/a.sock'" in done.stdout


# -- environment -------------------------------------------------------------------------------------------------


def test_the_environment_holds_what_vllm_needs_and_no_secrets() -> None:
    inherited = {
        "PATH": "/bin",
        "HOME": "/root",
        "LD_LIBRARY_PATH": "/cuda",
        "CUDA_VISIBLE_DEVICES": "0",
        "HF_HOME": "/hf",
        "VLLM_LOGGING_LEVEL": "DEBUG",
        "HF_TOKEN": "secret",
        "VLLM_API_KEY": "secret",
        "VLLM_SERVER_DEV_MODE": "1",
        "DATABASE_PASSWORD": "secret",
        "HTTP_PROXY": "http://p",
        "APPLIANCE_KEY": "secret",
    }
    env = environment(VllmOptions(), inherited, SOCKET.parent, on_cpu=False)
    assert {"PATH", "HOME", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "HF_HOME", "VLLM_LOGGING_LEVEL"} <= set(env)
    assert "secret" not in env.values()
    assert not {"VLLM_SERVER_DEV_MODE", "HTTP_PROXY"} & set(env)


def test_D2_nothing_is_fetched_or_reported_and_all_addresses_are_loopback() -> None:
    env = environment(VllmOptions(cpu_kv_cache_gib=3), {"HF_HUB_OFFLINE": "0"}, SOCKET.parent, on_cpu=False)
    assert env == {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        "SPT_NOENV": "1",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_RPC_BASE_PATH": "/run",
    }


def test_the_operators_own_variables_win() -> None:
    options = VllmOptions(env={"HF_HUB_OFFLINE": "0", "TORCHDYNAMO_DISABLE": "0"})
    env = environment(options, {}, SOCKET.parent, on_cpu=True)
    assert (env["HF_HUB_OFFLINE"], env["TORCHDYNAMO_DISABLE"]) == ("0", "0")


@pytest.mark.parametrize(
    ("eager", "on_cpu", "compiles"),
    [(None, True, False), (True, True, False), (False, True, True), (None, False, True), (True, False, True)],
)
def test_nothing_is_compiled_on_a_cpu_unless_graphs_are_asked_for(eager, on_cpu, compiles) -> None:
    env = environment(VllmOptions(enforce_eager=eager), {}, SOCKET.parent, on_cpu=on_cpu)
    assert ("TORCHDYNAMO_DISABLE" not in env) == compiles


# -- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"max_model_length": 5}, "max_model_len"),
        ({"max_model_len": "long"}, "models[0].options.max_model_len"),
        ({"gpu_memory_utilization": 1.5}, "models[0].options.gpu_memory_utilization"),
        ({"tensor_parallel_size": 0}, "models[0].options.tensor_parallel_size"),
    ],
)
def test_wrong_options_name_their_place(options: dict, place: str) -> None:
    with pytest.raises(ConfigError) as error:
        convert(options, VllmOptions, "models[0].options")
    assert place in str(error.value)


def test_a_missing_vllm_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_vllm_command, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'rag-appliance\[vllm\]'"):
        check_installed("models[0]")


LOG = """
(EngineCore pid=7) ERROR 11-30 06:08:36 [core.py:1] Traceback (most recent call last):
(EngineCore pid=7) ERROR 11-30 06:08:36 [core.py:1] ValueError: Free memory on device cuda:0 (3/80 GiB) is too small.
(APIServer pid=3) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_cause_of_a_failed_start_is_found_above_its_consequence(tmp_path: Path) -> None:
    log = tmp_path / "m.log"
    log.write_text(LOG)
    message = explain(SPEC, log, "m exited with code 1")
    assert message.startswith("the model org/chat did not start: Free memory on device cuda:0 (3/80 GiB) is too small.")
    assert "models[0]: lower options.gpu_memory_utilization" in message
    assert message.endswith(f"its log is {log}")
    assert "\n" not in message


LOG_OF_PYDANTIC = """
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (200000) is greater than the derived one (8192). [type=value_error]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
LOG_OF_A_FIELD = """
(APIServer pid=3) pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig
(APIServer pid=3) cache_dtype
(APIServer pid=3)   Input should be 'auto' or 'fp8' [type=literal_error, input_value='fp9', input_type=str]
(APIServer pid=3)     For further information visit https://errors.pydantic.dev/2.14/v/literal_error
"""
LOG_OF_THE_CACHE = """
(EngineCore pid=7) ERROR 11-30 06:08:36 [core.py:1] RuntimeError: Worker failed with error 'Available memory on node 0 \
(19.99/23.54 GiB) is less than requested memory for kv (400.0 GiB). Decrease VLLM_CPU_KVCACHE_SPACE'
"""


@pytest.mark.parametrize(
    ("text", "cause", "fix"),
    [
        (LOG_OF_PYDANTIC, "User-specified max_model_len (200000) is greater", "lower options.max_model_len"),
        (LOG_OF_A_FIELD, "cache_dtype Input should be 'auto' or 'fp8'; its log is", ""),
        (LOG_OF_THE_CACHE, "Worker failed with error 'Available memory on node 0", "lower options.cpu_kv_cache_gib"),
        ("ValueError: " + "word " * 100, "word word", "word ...; its log is"),
    ],
    ids=["value", "field", "cache", "long"],
)
def test_what_was_wrong_is_told_in_one_line_with_the_option_to_change(tmp_path, text, cause, fix) -> None:
    log = tmp_path / "m.log"
    log.write_text(text)
    message = explain(SPEC, log, "m exited with code 1")
    assert message.startswith(f"the model org/chat did not start: {cause}")
    assert fix in message
    assert "\n" not in message


def test_a_flag_that_vllm_refuses_is_named(tmp_path: Path) -> None:
    log = tmp_path / "m.log"
    log.write_text("usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --nonsense\n")
    message = explain(SPEC, log, "m exited with code 2")
    assert "unrecognized arguments: --nonsense; models[0]: correct extra_args" in message


def test_without_a_cause_the_supervisors_words_stand(tmp_path: Path) -> None:
    assert explain(SPEC, tmp_path / "none.log", "m was killed by SIGKILL") == "m was killed by SIGKILL"
