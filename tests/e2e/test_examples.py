"""The programs under examples/ run as they are against the real appliance."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from served import Served

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh"))
PRINTED = {
    "ask_documents.py": "[operations.md] ",
    "chat_stream.py": "The capital of France is Paris.\n\n",
    "curl.sh": "data: [DONE]",
    "langchain_rag.py": "from: operations.md",
    "langchain_retriever.py": " kitchen.txt: The kitchen closes at nine",
    "llamaindex_rag.py": " docs/operations.md: ",
}


def run(name: str, url: str) -> str:
    command = ["sh"] if name.endswith(".sh") else [sys.executable]
    done = subprocess.run(
        [*command, str(EXAMPLES / name)],
        cwd=ROOT,
        env={**os.environ, "APPLIANCE_URL": f"{url}/v1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_runs_and_prints_what_it_is_for(appliance: Served, name: str) -> None:
    assert PRINTED[name] in run(name, appliance.url)


def test_the_curl_example_cites_the_document(appliance: Served) -> None:
    printed = run("curl.sh", appliance.url)
    assert '"object":"vector_store.search_results.page"' in printed
    assert '"type":"file_citation"' in printed
    assert '"filename":"operations.md"' in printed
