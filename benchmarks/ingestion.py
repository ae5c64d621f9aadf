"""What ingestion does to others, and how close it comes to what the embedder alone can do.

``chats`` streams short answers of a scripted engine, one after the other, first alone and then while a PDF of 1,000
pages is parsed and embedded by MiniLM. ``rate`` ingests texts and compares with the same chunks embedded in a loop,
without anything else. Both are warm: the embedder is loaded, and a first file has started the process that parses.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._documents import MINILM, load, retrieval_config, retrieval_server
from benchmarks._serving import Served, machine
from benchmarks._text import Text
from benchmarks.search import MINILM_WORDS, first_token, made_up

REQUIRED_RATIO, REQUIRED_RATE = 1.2, 0.85
_CHAT = {"name": "m", "engine": "scripted", "options": {"reply": "yes"}}
_PAGE_LINES, _LINE_WORDS = 40, 6
_RATE_CHUNKS = 2_000
_PAUSE_SECONDS = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables; 1 if chats become too slow or ingestion is too far from the embedder."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ingestion", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pages", type=int, default=1_000, help="of the PDF [1000]")
    parser.add_argument("--idle", type=float, default=20.0, help="seconds of chats without ingestion [20]")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds of chats beside it at most [120]")
    options = parser.parse_args(arguments)
    print(machine())
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        config = retrieval_config(Path(name), models=[_CHAT, MINILM])
        config["plugins"] = ["scripted", *config["plugins"]]
        with retrieval_server(config, Path(name)) as served:
            ingested = _rate(served)
            ratio = _chats(served, options)
        embedded = asyncio.run(_embedder_rate(Path(name)))
    print("\n| chunks/s | ingested | embedded alone | ratio |\n|---|--:|--:|--:|")
    print(f"| MiniLM, 100 tokens | {ingested:.1f} | {embedded:.1f} | {ingested / embedded:.2f} |")
    return int(ratio > REQUIRED_RATIO or ingested < REQUIRED_RATE * embedded)


def _client(served: Served) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=f"{served.url}/v1", api_key="none", timeout=120)


def _rate(served: Served) -> float:
    """Chunks a second from upload to searchable."""
    strategy = {"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}}
    client = _client(served)
    load(client, "warm", {"first.txt": "a first file"}, strategy=strategy)
    loaded = load(client, "rate", made_up(_RATE_CHUNKS, MINILM_WORDS), strategy=strategy)
    chunks = sum(
        len(client.vector_stores.files.content(file, vector_store_id=loaded.store).data)
        for file in loaded.files.values()
    )
    return chunks / loaded.seconds


async def _embedder_rate(folder: Path) -> float:
    """The same chunks by the embedder in this process, as fast as it goes."""
    from appliance.config import load as load_config
    from appliance.models.registry import model_spec
    from appliance.models.store import ModelStore
    from appliance.types import Document
    from appliance_plugins.sources import SourcesSettings, appliance_model_sources
    from appliance_retrieval.onnx import make_embedder
    from appliance_retrieval.tokens import Tokens

    config = load_config(folder / "appliance.yaml")
    models = ModelStore(config.data_path / "models", appliance_model_sources(SourcesSettings()), folder)
    at = next(i for i, model in enumerate(config.models) if model.embedder)
    embedder = make_embedder(model_spec(config.models[at], f"models[{at}]", models))
    await embedder.start()
    texts: list[str] = []
    for text in made_up(_RATE_CHUNKS, MINILM_WORDS).values():
        spans = Tokens().split(Document(text=text), size=100, overlap=0, spans=embedder.token_spans(text))
        texts += [text[span.start : span.end] for span in spans]
    began = time.perf_counter()
    for start in range(0, len(texts), 64):
        await embedder.embed(texts[start : start + 64], bulk=True)
    seconds = time.perf_counter() - began
    await embedder.stop()
    return len(texts) / seconds


def _chats(served: Served, options: argparse.Namespace) -> float:
    """Print the times; the ratio of the 95th percentiles."""
    print("\n| chats | number | first token p50 ms | p95 ms |\n|---|--:|--:|--:|")
    alone = _row("alone", _first_tokens(served, _until(options.idle)))
    client = _client(served)
    store = client.vector_stores.create(name="pdf").id
    file = client.files.create(file=("manual.pdf", pdf(options.pages)), purpose="assistants").id
    client.vector_stores.files.create(vector_store_id=store, file_id=file)

    def status() -> str:
        return str(client.vector_stores.files.retrieve(file, vector_store_id=store).status)

    times, in_time = [], _until(options.limit)
    while status() == "in_progress" and in_time():
        times += _first_tokens(served, _until(1.0))
    if (last := status()) not in ("in_progress", "completed"):
        raise SystemExit(f"error: the PDF was not ingested: {last}")
    beside = _row(f"beside a PDF of {options.pages:,} pages", times)
    print(f"\np95 beside / alone: {beside / alone:.2f}")
    return beside / alone


def _until(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() < end


def _first_tokens(served: Served, go_on: Callable[[], bool]) -> list[float]:
    """Seconds to the first token of chats, twenty a second."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    times: list[float] = []
    while go_on() or len(times) < 2:
        times.append(first_token(connection, "hello", []))
        time.sleep(_PAUSE_SECONDS)
    return times


def _row(name: str, seconds: Sequence[float]) -> float:
    cuts = statistics.quantiles(seconds, n=20)
    print(f"| {name} | {len(seconds)} | {cuts[9] * 1e3:.1f} | {cuts[18] * 1e3:.1f} |", flush=True)
    return cuts[18]


def pdf(pages: int) -> bytes:
    """A PDF of made-up prose."""
    from reportlab.pdfgen.canvas import Canvas

    out, text = io.BytesIO(), Text(2)
    canvas = Canvas(out)
    for _ in range(pages):
        for line in range(_PAGE_LINES):
            canvas.drawString(72, 780 - 17 * line, " ".join(text.words(_LINE_WORDS)).capitalize() + ".")
        canvas.showPage()
    canvas.save()
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main())
