"""What ``appliance serve`` says when all is up."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from appliance.cli.banner import banner
from appliance.config import Config, ModelConfig, RetrievalConfig, ServerConfig, StoreConfig, load


@pytest.mark.parametrize(
    ("host", "guarded", "callers"),
    [
        ("127.0.0.1", False, "on this machine, without a key"),
        ("0.0.0.0", False, "whoever reaches 0.0.0.0, without a key"),
        ("127.0.0.1", True, "need a credential: appliance keys create"),
        ("0.0.0.0", True, "need a credential: appliance keys create"),
    ],
)
def test_the_summary_says_who_may_call(host: str, guarded: bool, callers: str) -> None:
    text = banner(Config(server=ServerConfig(host=host)), 8000, 1.0, guarded=guarded)
    assert f"\n  callers  {callers}\n" in text


@pytest.mark.parametrize(("host", "shown"), [("::1", "[::1]"), ("0.0.0.0", "127.0.0.1"), ("ai.example", "ai.example")])
def test_the_summary_s_addresses_can_be_called_from_this_machine(host: str, shown: str) -> None:
    text = banner(Config(server=ServerConfig(host=host)), 8000, 1.0, guarded=False)
    assert f"  API      http://{shown}:8000/v1 " in text


def test_the_example_asks_a_model_that_chats_also_where_others_come_first() -> None:
    ears = ModelConfig(name="ears", engine="openai", tasks=("transcriptions",))
    models = (ears, ModelConfig(name="hears", alias_of="ears"), ModelConfig(name="words", engine="vllm"))
    text = banner(Config(models=models), 8000, 1.0, guarded=False)
    assert text.count('model": "words"') == 1
    assert '"ears"' not in text
    assert '"hears"' not in text
    assert '"ears"' in banner(Config(models=models[:1]), 8000, 1.0, guarded=False)


def test_the_summary_says_where_other_protocols_are_served() -> None:
    text = banner(Config(), 8000, 1.0, guarded=False, listening={"gRPC": "127.0.0.1:50051"})
    assert "\n  gRPC     127.0.0.1:50051\n" in text


ROOT = Path(__file__).parents[3]
SENT = re.compile(r"-d '(\{.*\})'")


@pytest.mark.parametrize(
    ("config", "question"),
    [
        (load(ROOT / "appliance.yaml"), "How do I start the appliance?"),
        (
            Config(
                models=(ModelConfig(name="hr", engine="vllm", vector_stores=("handbook",)),),
                retrieval=RetrievalConfig(
                    stores=(
                        StoreConfig(name="handbook", paths=("hr/*.pdf",)),
                        StoreConfig(name="docs", paths=("docs/operations.md",)),
                    )
                ),
            ),
            "What are the documents about?",
        ),
        (Config(models=(ModelConfig(name="m", engine="vllm"),)), "What is the capital of France?"),
    ],
    ids=["the appliance's manual", "other documents", "no documents"],
)
def test_the_examples_ask_what_the_model_s_documents_can_answer(config: Config, question: str) -> None:
    text = banner(config, 8000, 1.0, guarded=False)
    (sent,) = SENT.findall(text)
    assert json.loads(sent)["messages"] == [{"role": "user", "content": question}]
    assert text.count(question) == 3
