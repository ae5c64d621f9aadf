"""docs/stores.md: its examples are configurations that work, and it names the vector stores that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.config import parse
from appliance.runtime import build

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "stores.md").read_text()
EXAMPLES = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
SECRETS = {"VECTORS_PASSWORD": "secret", "PINECONE_API_KEY": "pc-secret", "QDRANT_API_KEY": "secret"}


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: re.search(r"vector_store: (\w+)", text)[1])
def test_an_example_makes_the_vector_store_that_it_names(text: str, tmp_path: Path) -> None:
    runtime = build(parse(text, folder=tmp_path, environ=SECRETS), in_process=True)
    name = runtime.config.retrieval.vector_store
    assert name is not None
    assert runtime.plugins.vector_stores()[name](runtime.context) is not None


def test_the_table_names_every_vector_store_of_ours() -> None:
    sources = (ROOT / "retrieval" / "appliance_retrieval").glob("*.py")
    found = {name for path in sources for name in re.findall(r'return \{"(\w+)": lambda context', path.read_text())}
    table = re.search(r"^\| \| (.*) \|$", TEXT, re.MULTILINE)
    assert table is not None
    assert set(re.findall(r"`(\w+)`", table[1])) == found
    assert len(EXAMPLES) == 4
