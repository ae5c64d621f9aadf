"""What ``appliance serve`` says when all is up."""

from __future__ import annotations

import pytest

from appliance.cli.banner import banner
from appliance.config import Config, ServerConfig


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
