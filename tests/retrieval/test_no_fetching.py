"""Documents and stores fetch nothing: neither what a document names, nor on a library's own account (D3)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import asyncio, json, sys
from array import array
from pathlib import Path

calls = []

def note(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "urllib.Request"):
        calls.append((event, str(arguments[-1] if event == "socket.connect" else arguments[0])))

sys.addaudithook(note)

from appliance.plugin import AppContext, Config, Scope, StoredChunk
from appliance_retrieval import langchain, llamaindex
from appliance_retrieval import parsers

folder = Path(sys.argv[1])
read = []
for parser in parsers.appliance_parsers():
    for path in sorted(folder.glob("*.*")):
        if path.suffix in parser.suffixes:
            read.append(path.name)
            try:
                parser.parse(path, path.name, None)
            except Exception as error:
                read.append(type(error).__name__)

async def stored():
    context = AppContext(config=Config(folder=sys.argv[1]), database=None)
    chain = langchain.LangChainSettings(class_="class_stores.LangChainStore", filter="function")
    index = llamaindex.LlamaIndexSettings(class_="class_stores.LlamaIndexStore")
    for store in (langchain.make_store(chain, context), llamaindex.make_store(index, context)):
        await store.start()
        await store.create("vs_1", 2)
        chunk = StoredChunk(id="file-a:1:0", file_id="file-a", position=0, text="http://127.0.0.1:9/x")
        await store.upsert("vs_1", [chunk], array("f", [1.0, 0.0]).tobytes())
        assert await store.search_dense("vs_1", array("f", [1.0, 0.0]).tobytes(), limit=1, scope=Scope())
        await store.stop()

asyncio.run(stored())
print(json.dumps({"read": read, "calls": calls}))
"""
URL = "http://127.0.0.1:9/canary"
HOSTILE = {
    "page.html": f'<base href="{URL}/"><link rel="stylesheet" href="{URL}"><img src="{URL}"><p>The walrus sleeps.</p>',
    "note.md": f"# Walrus\n\n![x]({URL})\n\n[x]: {URL}\n\nThe walrus sleeps.\n",
    "feed.xml": f'<!DOCTYPE a SYSTEM "{URL}" [<!ENTITY x SYSTEM "{URL}">]><a>&x; The walrus sleeps.</a>',
    "table.csv": f'a,b\n"=WEBSERVICE(""{URL}"")",{URL}\n',
    "mail.eml": f"From: a@example.org\nSubject: x\nContent-Type: text/html\n\n<img src='{URL}'>The walrus sleeps.",
    "notes.json": json.dumps([{"url": URL, "text": "The walrus sleeps.", "$ref": URL}]),
}


def test_D3_no_document_and_no_store_of_a_class_makes_anything_call_out(tmp_path: Path) -> None:
    for name, content in HOSTILE.items():
        (tmp_path / name).write_text(content)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False, env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {"page.html", "note.md", "table.csv", "mail.eml"} <= set(found["read"])
    assert found["calls"] == []
