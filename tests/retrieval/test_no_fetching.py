"""Documents and stores fetch nothing: neither what a document names, nor on a library's own account (D3)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import documents

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
read, texts = [], []
for parser in parsers.appliance_parsers():
    for path in sorted(folder.glob("*.*")):
        if path.suffix in parser.suffixes:
            try:
                texts.append(parser.parse(path, path.name, None).text)
                read.append(path.name)
            except Exception as error:
                read.append(f"{path.name}: {type(error).__name__}")

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
print(json.dumps({"read": read, "calls": calls, "passwd": any("root:" in text for text in texts)}))
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


EXTERNAL = f"""<Relationship Id="rIdX" TargetMode="External" Target="{URL}"
    Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/{{kind}}"/></Relationships>"""
ENTITY = f'<!DOCTYPE x SYSTEM "{URL}" [<!ENTITY x SYSTEM "{URL}"><!ENTITY f SYSTEM "file:///etc/passwd">]>'


def hostile_archives(folder: Path) -> None:
    """Office documents and a book that name pictures, templates, links and entities elsewhere."""
    parts = {
        documents.docx(folder): ("word/_rels/document.xml.rels", "word/document.xml", "attachedTemplate"),
        documents.pptx(folder): ("ppt/slides/_rels/slide1.xml.rels", "ppt/slides/slide1.xml", "image"),
        documents.xlsx(folder): ("xl/_rels/workbook.xml.rels", "xl/worksheets/sheet1.xml", "externalLink"),
    }
    for path, (links, body, kind) in parts.items():
        with zipfile.ZipFile(path) as archive:
            linked, content = archive.read(links).decode(), archive.read(body).decode()
        head, _, rest = content.partition("?>")
        entities = path.with_stem(f"{path.stem}-entities")
        shutil.copy(path, entities)
        documents.replace_part(path, links, linked.replace("</Relationships>", EXTERNAL.format(kind=kind)).encode())
        documents.replace_part(entities, body, f"{head}?>{ENTITY}{rest.replace('>', '>&x;&f;', 2)}".encode())
    documents.epub(folder, [f'<img src="{URL}"/><link rel="stylesheet" href="{URL}"/><p>The walrus sleeps.</p>'])
    documents.epub(folder, name="entities.epub", **{"META-INF__container.xml": ENTITY + "<x>&x;</x>"})


def test_D3_no_document_and_no_store_of_a_class_makes_anything_call_out(tmp_path: Path) -> None:
    for name, content in HOSTILE.items():
        (tmp_path / name).write_text(content)
    hostile_archives(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True, text=True, timeout=300, check=False, env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    names = {"page.html", "note.md", "table.csv", "mail.eml", "manual.docx", "slides.pptx", "parts.xlsx", "book.epub"}
    assert names <= set(found["read"])
    assert found["calls"] == []
    assert not found["passwd"], "an entity was expanded"
