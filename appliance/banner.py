"""What ``appliance serve`` prints once everything is up: what serves where, and an example for each client."""

from __future__ import annotations

from appliance.config import Config


def banner(config: Config, port: int, seconds: float) -> str:
    """The text; ``seconds`` is how long the start took."""
    host = config.server.host if config.server.host not in ("0.0.0.0", "::") else "127.0.0.1"  # noqa: S104
    base = f"http://{host}:{port}/v1"
    chats = [model for model in config.models if model.engine or model.alias_of]
    grounded = next((model for model in chats if model.vector_stores), None)
    model = (grounded or chats[0]).name if chats else "MODEL"
    ask = "Which command starts the appliance?" if grounded else "What is the capital of France?"
    lines = [
        "",
        f"ready after {seconds:.1f} s",
        f"  API      {base}   (OpenAI-compatible; document at http://{host}:{port}/openapi.json)",
        f"  models   {', '.join(m.name + _note(m.vector_stores) for m in config.models) or 'none'}",
        f"  probes   http://{host}:{port}/livez  /readyz",
        "",
        "curl:",
        f"  curl -N {base}/chat/completions -H 'Content-Type: application/json' \\",
        f"""    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "{ask}"}}]}}'""",
        "",
        "openai (pip install openai):",
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{base}", api_key="none")',
        f'  print(client.chat.completions.create(model="{model}", messages=[{{"role": "user", "content": "Hello"}}]))',
        "",
        "LangChain (pip install langchain-openai):",
        "  from langchain_openai import ChatOpenAI",
        f'  print(ChatOpenAI(base_url="{base}", api_key="none", model="{model}").invoke("Hello").content)',
        "",
        "Ctrl-C stops everything.",
    ]
    return "\n".join(lines)


def _note(stores: tuple[str, ...]) -> str:
    return f" (answers from {', '.join(stores)})" if stores else ""
