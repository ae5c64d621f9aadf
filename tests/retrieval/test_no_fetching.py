"""Documents and stores fetch nothing: neither what a document names, nor on a library's own account (D3)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import documents
import hostile_documents
from canary_server import canary

PROGRAM = """
import asyncio, json, sys
from array import array
from pathlib import Path

calls = []

def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        calls.append((event, str(arguments[-1] if event == "socket.connect" else arguments[0])))
    elif event == "open" and str(arguments[0]).endswith(sys.argv[2]):
        calls.append((event, str(arguments[0])))

sys.addaudithook(note)

from appliance.plugin import AppContext, Config, InvalidFile, Scope, StoredChunk
from appliance_retrieval import langchain, llamaindex
from appliance_retrieval import parsers

folder = Path(sys.argv[1])
read, refused, texts = [], [], []
for parser in parsers.appliance_parsers():
    for path in sorted(folder.glob("*.*")):
        if path.suffix in parser.suffixes:
            try:
                texts.append(parser.parse(path, path.name, None).text)
                read.append(path.name)
            except InvalidFile:
                refused.append(path.name)

async def stored():
    context = AppContext(config=Config(folder=sys.argv[1]), database=None)
    chain = langchain.LangChainSettings(class_="class_stores.LangChainStore", filter="function")
    index = llamaindex.LlamaIndexSettings(class_="class_stores.LlamaIndexStore")
    for store in (langchain.make_store(chain, context), llamaindex.make_store(index, context)):
        await store.start()
        await store.create("vs_1", 2)
        chunk = StoredChunk(id="file-a:1:0", file_id="file-a", position=0, text=sys.argv[3])
        await store.upsert("vs_1", [chunk], array("f", [1.0, 0.0]).tobytes())
        assert await store.search_dense("vs_1", array("f", [1.0, 0.0]).tobytes(), limit=1, scope=Scope())
        await store.stop()

asyncio.run(stored())
secret = any("quetzalcoatlus" in text for text in texts)
print(json.dumps({"read": read, "refused": refused, "calls": calls, "secret": secret}))
"""


def test_D3_no_document_and_no_store_of_a_class_makes_anything_call_out(tmp_path: Path) -> None:
    """Not even where nothing confines the parsers: a canary hears who calls, also from libraries in C."""
    secret = documents.text(tmp_path, "quetzalcoatlus", "secret")
    folder = tmp_path / "outward"
    folder.mkdir()
    with canary() as bird:
        names = {path.name for path in hostile_documents.outward(folder, bird.url, secret)}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder), str(secret), bird.url], capture_output=True, text=True,
            timeout=300, check=False, env={"PYTHONPATH": ":".join(filter(None, sys.path))},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        assert len(found["read"]) > 45
        assert {*found["read"], *found["refused"]} == names - {"sheet.xsl"}
        assert found["calls"] == []
        assert bird.hits == []
        assert not found["secret"], "an entity was expanded, or a file included"
