"""What ``appliance serve`` prints once everything is up: what serves where, and an example for each client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from appliance.config import Config, ModelConfig
from appliance.loopback import is_loopback

_ABOUT_US = "How do I start the appliance?"
"""Asked of a model that has the appliance's own manual, as in the default configuration."""
_ABOUT_THEM = "What are the documents about?"
"""Asked of one that has others."""
_MANUAL = "operations.md"


def banner(
    config: Config, port: int, seconds: float, *, guarded: bool, listening: Mapping[str, str] | None = None
) -> str:
    """The text; ``seconds`` is how long the start took, ``guarded`` whether callers need a credential.

    ``listening`` are the addresses of other protocols, by name.
    """
    host = config.server.host if config.server.host not in ("0.0.0.0", "::") else "127.0.0.1"  # noqa: S104
    host = f"[{host}]" if ":" in host else host
    base = f"http://{host}:{port}/v1"
    chats = _chats(config)
    grounded = next((model for model in chats if model.vector_stores), None)
    model = (grounded or chats[0]).name if chats else "MODEL"
    question = _question(config, grounded)
    asked = f'{{"role": "user", "content": "{question}"}}'
    key = "YOUR-KEY" if guarded else "none"
    lines = [
        "",
        f"ready after {seconds:.1f} s",
        f"  API      {base}   (OpenAI-compatible; document at http://{host}:{port}/openapi.json)",
        *(f"  {name:<8} {address}" for name, address in (listening or {}).items()),
        f"  models   {', '.join(m.name + _note(m.vector_stores) for m in config.models) or 'none'}",
        f"  callers  {_callers(config.server.host, guarded)}",
        f"  probes   http://{host}:{port}/livez  /readyz",
        "",
        "curl:",
        f"  curl -N {base}/chat/completions -H 'Content-Type: application/json' \\",
        *([f"    -H 'Authorization: Bearer {key}' \\"] if guarded else []),
        f"""    -d '{{"model": "{model}", "stream": true, "temperature": 0, "messages": [{asked}]}}'""",
        "",
        "openai (pip install openai):",
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{base}", api_key="{key}")',
        f'  answer = client.chat.completions.create(model="{model}", temperature=0, messages=[{asked}])',
        "  print(answer.choices[0].message.content)",
        "",
        "LangChain (pip install langchain-openai):",
        "  from langchain_openai import ChatOpenAI",
        f'  model = ChatOpenAI(base_url="{base}", api_key="{key}", model="{model}", temperature=0)',
        f'  print(model.invoke("{question}").content)',
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def _chats(config: Config) -> list[ModelConfig]:
    """Models for an example; those that have tasks with sound or pictures last, for they may do nothing else."""
    media = {model.name for model in config.models if model.tasks}
    chats = [model for model in config.models if model.engine or model.alias_of]
    return sorted(chats, key=lambda model: (model.alias_of or model.name) in media)


def _question(config: Config, model: ModelConfig | None) -> str:
    """One that ``model`` can answer; ``None`` is one without documents."""
    if model is None:
        return "What is the capital of France?"
    paths = [path for store in config.retrieval.stores if store.name in model.vector_stores for path in store.paths]
    return _ABOUT_US if any(PurePath(path).name == _MANUAL for path in paths) else _ABOUT_THEM


def _callers(host: str, guarded: bool) -> str:
    if guarded:
        return "need a credential: appliance keys create"
    return "on this machine, without a key" if is_loopback(host) else f"whoever reaches {host}, without a key"


def _note(stores: tuple[str, ...]) -> str:
    return f" (answers from {', '.join(stores)})" if stores else ""
