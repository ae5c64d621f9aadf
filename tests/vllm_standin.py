"""Stands in for a vLLM process where a test is about its supervision: same socket, same routes, up at once.

    python vllm_standin.py SOCKET

The last message says what happens: ``die`` ends the process in mid-stream; ``sick`` reports an error there, then
refuses everything for a while and exits, as vLLM does when its engine core has died; ``endless`` streams until closed.
With STANDIN_MODEL=ranks or =hears it serves no other routes than a model that only does so. STANDIN_SEEN names a
file that gets every body with messages, one a line.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from engine_upstream import Exchange, UpstreamServer, choice, event, heard_by_vllm, hello

SICK_SECONDS = 1.0
RANKING = ("/score", "/v1/score", "/v1/rerank")
SERVED = {"ranks": ("/health", *RANKING), "hears": ("/health", "/v1/audio/transcriptions", "/v1/audio/translations")}


class Standin:
    def __init__(self) -> None:
        self.sick = False

    async def answer(self, exchange: Exchange) -> None:
        served = SERVED.get(os.environ.get("STANDIN_MODEL", ""))
        if served is not None and exchange.path not in served:
            await exchange.json(404, {"detail": "Not Found"})
            return
        if exchange.path in RANKING:
            await exchange.json(200, {"object": "list", "data": [{"index": 0, "object": "score", "score": 1.0}]})
            return
        if exchange.path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
            await heard_by_vllm(exchange)
            return
        text = _last_text(exchange)
        _note(exchange)
        if exchange.path == "/tokenize":
            await exchange.json(200, {"count": 1, "max_model_len": 2048, "tokens": [1]})
        elif exchange.path in ("/v1/embeddings", "/v1/audio/speech"):
            await exchange.json(404, {"detail": "Not Found"})
        elif self.sick:
            await exchange.json(503 if exchange.path == "/health" else 500, {"error": {"message": "EngineDeadError"}})
        elif exchange.path == "/health":
            await exchange.json(200, {})
        elif text in ("die", "sick", "endless"):
            await self._fail(exchange, text)
        else:
            await hello(exchange)

    async def _fail(self, exchange: Exchange, how: str) -> None:
        await exchange.begin()
        await exchange.send(choice(exchange, "par"))
        while how == "endless":
            await exchange.send(choice(exchange, "x"))
            await asyncio.sleep(0.01)
        if how == "die":
            os._exit(1)
        self.sick = True
        asyncio.get_running_loop().call_later(SICK_SECONDS, os._exit, 1)
        await exchange.send(event({"error": {"message": "EngineCore encountered an issue.", "code": 500}}))
        await exchange.send(b"data: [DONE]\n\n")
        await exchange.end()


def _last_text(exchange: Exchange) -> object:
    messages = (exchange.body or {}).get("messages") or [{}]
    return messages[-1].get("content")


def _note(exchange: Exchange) -> None:
    if (path := os.environ.get("STANDIN_SEEN")) and "messages" in (exchange.body or {}):
        with Path(path).open("a") as file:
            file.write(json.dumps(exchange.body) + "\n")


async def main(path: str) -> None:
    if os.environ.get("STANDIN_FAILS"):
        sys.exit("RuntimeError: no such device")
    await asyncio.sleep(float(os.environ.get("STANDIN_DELAY", "0")))
    server = await asyncio.start_unix_server(UpstreamServer(Standin().answer).serve, path)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
