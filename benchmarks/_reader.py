"""An engine that reads: ``python _reader.py PORT`` answers with the sentence of the sources that fits best.

It stands in for a model where what is measured is which passages come before it and how its markers become citations:
it always cites the source that it took the sentence from, and knows nothing else.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_SOURCE = re.compile(r'<source id="(\d+)"[^>]*>\n\[\d+\] (.*?)\n</source>', re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z])|\n\s*\n")
_WORD = re.compile(r"[a-z0-9]{2,}")


def answer(messages: list[dict[str, Any]]) -> str:
    """The best sentence with its source's number; ``I do not know.`` where the sources share no word with it."""
    question = _words(str(messages[-1]["content"]))
    sentences = [(number, sentence, _words(sentence)) for number, sentence in _sentences(str(messages[0]["content"]))]
    having = Counter(word for _, _, words in sentences for word in words)

    def merit(words: set[str]) -> float:
        shared = sum(math.log(1 + len(sentences) / having[word]) for word in words & question)
        return shared / math.sqrt(8 + len(words))

    best = max(sentences, key=lambda item: merit(item[2]), default=None)
    if best is None or not merit(best[2]):
        return "I do not know."
    return f"{' '.join(best[1].split())} [{best[0]}]"


def _sentences(system: str) -> Iterator[tuple[int, str]]:
    for source in _SOURCE.finditer(system):
        for sentence in _SENTENCE.split(source[2]):
            yield int(source[1]), sentence


def _words(text: str) -> set[str]:
    return {word[:6] for word in _WORD.findall(text.lower())}


class Reader(BaseHTTPRequestHandler):
    """``POST /v1/chat/completions``, not streamed, and ``GET /v1/models``."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send({"object": "list", "data": []})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        message = {"role": "assistant", "content": answer(body["messages"])}
        self._send(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class names it
        """Say nothing."""

    def _send(self, body: dict[str, Any]) -> None:
        payload = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Reader).serve_forever()
