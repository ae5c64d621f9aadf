"""Hybrid search: for every query a dense and a text leg over all stores at once, fused, asked again, reranked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msgspec.structs import replace

from appliance.circuit import Circuit
from appliance.errors import BadRequest, Conflict, RetrievalUnavailable
from appliance.knowledge.diversity import diverse
from appliance.knowledge.embedding import BatchingEmbedder
from appliance.knowledge.feedback import READ_CHARACTERS, READ_PASSAGES, share, telling_words, towards
from appliance.knowledge.fusion import Leg, fuse_ranks, fuse_scores
from appliance.knowledge.neighbors import Neighborhood
from appliance.knowledge.placement import HeldElsewhere
from appliance.knowledge.reranking import rerank
from appliance.knowledge.tasks import task_group
from appliance.protocols import GivesVectors, Reranker, VectorStore
from appliance.storage import searches, stores
from appliance.storage.database import Database
from appliance.storage.tables import VectorStore as StoreRow
from appliance.types import Findings, Fusion, Hit, Passage, Scope, Search, StoredChunk

WEIGHTS: Mapping[Fusion, tuple[float, float]] = {"scores": (1.0, 2.0), "ranks": (1.0, 1.0)}
"""Of the text leg and the dense leg, by the way of fusion, where the client says nothing."""
Ranking: TypeAlias = list[tuple[str, Hit]]
"""Hits with their store ids, best first: what one leg found for one query in all stores."""
_Vectors: TypeAlias = Mapping[BatchingEmbedder, list[bytes]]
"""A vector for each query, by the embedder that made it."""


@dataclass
class _Found:
    """A chunk with the best that each leg said of it."""

    store_id: str
    hit: Hit
    similarity: float | None = None
    matched: bool = False

    @property
    def chunk(self) -> StoredChunk:
        """The chunk itself."""
        return self.hit.chunk

    @property
    def place(self) -> tuple[str, str]:
        """Store and file."""
        return self.store_id, self.chunk.file_id


@dataclass(frozen=True)
class _Legs:
    """What the legs found, a ranking for each query, and the vectors that were asked for."""

    vectors: _Vectors
    dense: list[Ranking]
    text: list[Ranking]
    fed: list[Ranking] = field(default_factory=list)
    """What shares telling words with the best passage: one ranking, or none."""
    first: list[Ranking] | None = None
    """The dense leg of the queries themselves, where ``dense`` is that of moved ones."""


@dataclass
class _Shown:
    """The files that one search has asked about, and by store and file the names of those that may be shown.

    Files that are half indexed or on their way out may not.
    """

    asked: set[str] = field(default_factory=set)
    names: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass
class Searcher:
    """Runs searches against one vector-store backend."""

    database: Database
    backend: VectorStore
    embedders: Mapping[str, BatchingEmbedder]
    candidates: int
    fusion: Fusion = "scores"
    reranker: Reranker | None = None
    rerank_candidates: int = 20
    _failing: dict[str, Circuit] = field(default_factory=dict)
    """Of the tenants whose last search failed: what is wrong with the stores of one keeps no other waiting."""

    async def search(self, search: Search, scope: Scope) -> Findings:
        """See ``Knowledge.search``."""
        rows, denied = await self._stores(search, scope)
        if not rows:
            return Findings()
        with self._unless_failing(scope.tenant):
            passages, more = await self._searched(self._weighed(search), scope, rows)
        return Findings(passages=passages, more=more, denied=denied)

    @contextmanager
    def _unless_failing(self, tenant: str) -> Iterator[None]:
        """While all searches of a tenant fail, most are told so at once instead of after a time-out."""
        circuit = self._failing.get(tenant)
        if circuit is not None and not circuit.passes():
            raise RetrievalUnavailable(
                "the vector store or the embedder fails; searches are tried again in a moment",
                retry_after=circuit.retry_after,
            )
        try:
            yield
        except HeldElsewhere:
            raise  # of one store alone, known without asking, and not mended by waiting
        except RetrievalUnavailable:
            self._failing.setdefault(tenant, Circuit()).note(ok=False)
            raise
        self._failing.pop(tenant, None)

    async def _searched(self, search: Search, scope: Scope, rows: Mapping[str, StoreRow]) -> tuple[list[Passage], bool]:
        """The page that was asked for, and whether there is more."""
        async with task_group() as group:
            near = group.create_task(self._dense(search, scope, rows))
            worded = group.create_task(self._text(search, scope, rows, search.queries))
        (vectors, dense), text = near.result(), worded.result()
        legs = _Legs(vectors, dense, text)
        shown = _Shown()
        fused = await self._fused(search, scope, rows, legs, shown)
        if search.feedback > 0 and search.ranker != "none" and vectors and fused:  # who asks for words means those
            legs = await self._asked_again(search, scope, rows, legs, [item for item, _ in fused[:READ_PASSAGES]])
            fused = await self._fused(search, scope, rows, legs, shown)
        passages = [_passage(item, shown.names[item.place], score) for item, score in fused]
        passages = await self._reranked(search, passages)
        fit = [passage for passage in passages if passage.score >= search.score_threshold]
        end = search.offset + search.limit
        page = diverse(fit, end, search.diversity)[search.offset : end]
        if search.neighbors:
            around = Neighborhood(self.backend, {row.id: row.collection for row in rows.values()}, scope)
            page = await around.surround(page, {item.chunk.id: item.chunk for item, _ in fused}, search.neighbors)
        return page, len(fit) > end

    def _weighed(self, search: Search) -> Search:
        """With the way of fusion and the weights that hold where the client says nothing."""
        fusion = search.fusion or self.fusion
        text, embedding = WEIGHTS[fusion]
        return replace(
            search,
            fusion=fusion,
            text_weight=text if search.text_weight is None else search.text_weight,
            embedding_weight=embedding if search.embedding_weight is None else search.embedding_weight,
        )

    async def _reranked(self, search: Search, passages: list[Passage]) -> list[Passage]:
        """Only what was reranked is returned: its scores do not compare with those of the fusion."""
        if self.reranker is None or search.ranker == "none":
            return passages
        best = passages[: max(self.rerank_candidates, search.limit)]
        return await rerank(self.reranker, search.queries, best)

    async def _stores(self, search: Search, scope: Scope) -> tuple[dict[str, StoreRow], int]:
        """The stores, if the caller may reach them all, and how many chunks in them the caller may not see.

        One that never held a chunk has nothing to search.
        """
        async with self.database.tenant(scope.tenant, stores=scope.stores, write=False) as session:
            ids = dict.fromkeys(search.store_ids)
            rows, denied = await searches.searched(session, ids, scope.readers)
        stale = [row.id for row in rows if stores.is_stale(row)]
        if stale:
            async with self.database.tenant(scope.tenant) as session:
                await stores.touch(session, stale)
        return {row.id: row for row in rows if row.fingerprint is not None}, denied

    async def _fused(
        self, search: Search, scope: Scope, rows: Mapping[str, StoreRow], legs: _Legs, shown: _Shown
    ) -> list[tuple[_Found, float]]:
        """What the legs found and may be shown, with its score, best first."""
        found = _collect(legs)
        scores = _scores(search, legs, found, self._limit(search))
        # The queries saw to the readers; looking again makes a right that was taken away hold at once, while the
        # chunks are being changed.
        if unknown := {item.chunk.file_id for item in found.values()} - shown.asked:
            async with self.database.tenant(scope.tenant, readers=scope.readers, write=False) as session:
                shown.names.update(await searches.filenames(session, rows.keys(), unknown))
            shown.asked |= unknown
        # Of two that one leg each puts at the same rank, the one that shares a word with the query comes first.
        ranked = sorted(scores, key=lambda chunk_id: (-scores[chunk_id], not found[chunk_id].matched, chunk_id))
        best = ((found[chunk_id], scores[chunk_id]) for chunk_id in ranked)
        return [(item, score) for item, score in best if item.place in shown.names]

    async def _dense(
        self, search: Search, scope: Scope, rows: Mapping[str, StoreRow]
    ) -> tuple[_Vectors, list[Ranking]]:
        """The queries' vectors and what is near them; nothing where only words count."""
        used = {embedder_of(row, self.embedders) for row in rows.values()}
        if search.ranker != "none" and search.embedding_weight == 0:
            return {}, []
        vectors = {each: _rows((await each.embed(search.queries)).vectors, each) for each in used}
        return vectors, await self._nearest(search, scope, rows, vectors)

    async def _asked_again(
        self,
        search: Search,
        scope: Scope,
        rows: Mapping[str, StoreRow],
        legs: _Legs,
        best: Sequence[_Found],
    ) -> _Legs:
        """Both legs from nearer to the best passage (``feedback``)."""

        async def near() -> tuple[_Vectors, list[Ranking]]:
            vectors = await self._moved(search, scope, rows, legs.vectors, best[0])
            return vectors, await self._nearest(search, scope, rows, vectors)

        words = " ".join(telling_words([item.chunk.searchable for item in best]))
        async with task_group() as group:
            moved = group.create_task(near())
            fed = group.create_task(self._text(search, scope, rows, [words] if words else []))
        return _Legs(*moved.result(), legs.text, fed.result(), first=legs.dense)

    async def _moved(
        self, search: Search, scope: Scope, rows: Mapping[str, StoreRow], vectors: _Vectors, best: _Found
    ) -> _Vectors:
        """The queries' vectors nearer to that of the best passage, unless the embedder does not take that."""
        try:
            passage = {each: await self._vector_of(best, each, rows[best.store_id], scope) for each in vectors}
        except BadRequest:  # would be told as if the question were wrong
            return vectors
        return {
            each: [towards(row, passage[each], search.feedback) for row in found] for each, found in vectors.items()
        }

    async def _vector_of(self, best: _Found, embedder: BatchingEmbedder, store: StoreRow, scope: Scope) -> bytes:
        """The vector that its store keeps of a passage, else it is embedded."""
        if isinstance(self.backend, GivesVectors) and embedder_of(store, self.embedders) is embedder:
            kept = await self.backend.vector(store.collection, best.chunk.id, scope=scope)
            if kept is not None:
                return kept
        return (await embedder.embed([best.chunk.searchable[:READ_CHARACTERS]])).vectors

    async def _nearest(
        self, search: Search, scope: Scope, rows: Mapping[str, StoreRow], vectors: _Vectors
    ) -> list[Ranking]:
        async def leg(store_id: str, query: int) -> Sequence[Hit]:
            vector = vectors[embedder_of(rows[store_id], self.embedders)][query]
            return await self.backend.search_dense(
                rows[store_id].collection, vector, limit=self._limit(search), scope=scope, where=search.where
            )

        return await self._each(search, rows, len(next(iter(vectors.values()), [])), leg)

    async def _text(
        self, search: Search, scope: Scope, rows: Mapping[str, StoreRow], queries: Sequence[str]
    ) -> list[Ranking]:
        if search.ranker == "none" or search.text_weight == 0:
            return []

        async def leg(store_id: str, query: int) -> Sequence[Hit]:
            return await self.backend.search_text(
                rows[store_id].collection,
                queries[query],
                limit=self._limit(search),
                scope=scope,
                where=search.where,
            )

        return await self._each(search, rows, len(queries), leg)

    async def _each(
        self,
        search: Search,
        rows: Mapping[str, StoreRow],
        queries: int,
        leg: Callable[[str, int], Coroutine[Any, Any, Sequence[Hit]]],
    ) -> list[Ranking]:
        async with task_group() as group:
            asked = [
                {store_id: group.create_task(leg(store_id, query)) for store_id in rows} for query in range(queries)
            ]
        return [self._merged(search, answers) for answers in asked]

    def _merged(self, search: Search, answers: Mapping[str, asyncio.Task[Sequence[Hit]]]) -> Ranking:
        found = [(store_id, hit) for store_id, answer in answers.items() for hit in answer.result()]
        return sorted(found, key=lambda item: -item[1].score)[: self._limit(search)]

    def _limit(self, search: Search) -> int:
        return max(self.candidates, search.limit)


def embedder_of(store: StoreRow, embedders: Mapping[str, BatchingEmbedder]) -> BatchingEmbedder:
    """The embedder whose vectors a store holds. Raises Conflict when it is not configured any more."""
    for candidate in (embedders.get(store.embedder or ""), *embedders.values()):
        if candidate is not None and candidate.embedder.fingerprint == store.fingerprint:
            return candidate
    present = ", ".join(f"{e.name} ({e.embedder.dimensions} numbers)" for e in embedders.values())
    raise Conflict(
        f"vector store {store.id} holds vectors of {store.embedder} ({store.dimensions} numbers), but configured is "
        f"{present}; index it by one of those (POST /v1/vector_stores/{store.id}/reindex, or 'appliance stores reindex "
        f"{store.id} --embedder NAME'), or configure the old model again",
        code="embedding_model_changed",
    )


def _rows(vectors: bytes, embedder: BatchingEmbedder) -> list[bytes]:
    width = embedder.embedder.dimensions * 4
    return [vectors[start : start + width] for start in range(0, len(vectors), width)]


def _collect(legs: _Legs) -> dict[str, _Found]:
    found: dict[str, _Found] = {}
    for ranking in (*legs.dense, *legs.text, *legs.fed):
        for store_id, hit in ranking:
            found.setdefault(hit.chunk.id, _Found(store_id, hit))
    for chunk_id, similarity in _similarities(legs).items():
        found[chunk_id].similarity = similarity
    for ranking in legs.text:
        for _, hit in ranking:
            found[hit.chunk.id].matched = True
    return found


def _similarities(legs: _Legs) -> dict[str, float]:
    """Likeness is that to the query itself; what its own leg did not list has at most that of the last in it."""
    near = _cosines(legs.dense)
    if legs.first is None:
        return near
    known = _cosines(legs.first)
    most = max((ranking[-1][1].score for ranking in legs.first if ranking), default=0.0)
    return {chunk_id: known.get(chunk_id, min(cosine, most)) for chunk_id, cosine in near.items()}


def _cosines(dense: list[Ranking]) -> dict[str, float]:
    """Of each chunk, the best that a query has."""
    best: dict[str, float] = {}
    for ranking in dense:
        for _, hit in ranking:
            best[hit.chunk.id] = max(hit.score, best.get(hit.chunk.id, hit.score))
    return best


def _scores(search: Search, legs: _Legs, found: Mapping[str, _Found], limit: int) -> dict[str, float]:
    """Final scores from 0 to 1: the cosine for ranker ``none``, else the fused one."""
    if search.ranker == "none":
        return {chunk_id: min(1.0, max(0.0, item.similarity or 0.0)) for chunk_id, item in found.items()}
    words = search.text_weight or 0.0
    passed_on = share(search.feedback) if legs.fed else 0.0
    weighed = [_leg(ranking, search.embedding_weight or 0.0, limit) for ranking in legs.dense]
    weighed += [_leg(ranking, words * (1 - passed_on), limit) for ranking in legs.text]
    weighed += [_leg(ranking, words * passed_on * len(legs.text), limit) for ranking in legs.fed]
    return fuse_ranks(weighed) if search.fusion == "ranks" else fuse_scores(weighed)


def _leg(ranking: Ranking, weight: float, limit: int) -> Leg:
    """A list that is shorter than it might be holds all there is."""
    floor = ranking[-1][1].score if len(ranking) >= limit else 0.0
    return Leg({hit.chunk.id: hit.score for _, hit in ranking}, weight, floor)


def _passage(item: _Found, filename: str, score: float) -> Passage:
    chunk = item.chunk
    return Passage(
        chunk_id=chunk.id,
        store_id=item.store_id,
        file_id=chunk.file_id,
        filename=filename,
        text=chunk.text,
        score=score,
        similarity=item.similarity,
        matched=item.matched,
        attributes=chunk.attributes,
        start=chunk.start,
        end=chunk.end,
        context=chunk.context,
    )
