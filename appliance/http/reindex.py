"""``/v1/vector_stores/{id}/reindex``: change what embeds a store, and see how that is doing. Not OpenAI's."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from litestar import Response

from appliance.audit import ORIGIN
from appliance.errors import BadRequest, Conflict, ModelNotFound
from appliance.http.requests import HttpRequest, answer, principal, read_json, runtime, tenant_session
from appliance.http.vector_stores import knowledge, store_id_of
from appliance.knowledge.report import ReindexOrder, ReindexStatus, Step, StoreStatus
from appliance.storage import stores
from appliance.wire import decoder

_DAY = 86_400


class ReindexStore(msgspec.Struct, kw_only=True):
    """``begin`` needs ``embedder``, the name of an embedding model; the other steps take nothing else."""

    step: Step = "begin"
    embedder: str | None = None
    keep_days: Annotated[int, msgspec.Meta(ge=0, le=3650)] = 7
    skip_failed: bool = False


class ReindexObject(msgspec.Struct, kw_only=True):
    """What embeds a store, and its second collection while it has one."""

    id: str
    object: Literal["vector_store.reindex"] = "vector_store.reindex"
    embedder: str | None
    fingerprint: str | None
    dimensions: int | None
    metric: str
    servable: bool
    reindex: ReindexStatus | None


_decode = decoder(ReindexStore)


async def reindex_store(request: HttpRequest) -> Response[bytes]:
    """``POST /v1/vector_stores/{vector_store_id}/reindex``: take a step; the work goes on by itself."""
    retrieval, caller = knowledge(request), principal(request)
    body = await read_json(request, _decode)
    async with tenant_session(request, write=False) as session:
        store = await stores.get(session, store_id_of(request))
    if body.step == "begin":
        await _check_embedder(request, body.embedder)
    origin = ORIGIN.get()
    order = ReindexOrder(
        step=body.step,
        store=store.id,
        embedder=body.embedder or "",
        keep_seconds=body.keep_days * _DAY,
        skip_failed=body.skip_failed,
        by=caller.id,
        user=caller.user or "",
        request_id=origin.request_id,
        address=origin.address,
    )
    return answer(_object(await retrieval.reindex(order), manages=session.sees_all))


async def get_reindex(request: HttpRequest) -> Response[bytes]:
    """``GET /v1/vector_stores/{vector_store_id}/reindex``."""
    retrieval = knowledge(request)
    async with tenant_session(request, write=False) as session:
        store = await stores.get(session, store_id_of(request))
    found = await retrieval.stores(store.id)
    if not found:
        raise Conflict(f"vector store {store.id} is being deleted; repeat the DELETE if it does not go")
    return answer(_object(found[0], manages=session.sees_all))


async def _check_embedder(request: HttpRequest, name: str | None) -> None:
    """It must be an embedding model that the caller may use."""
    if not name:
        raise BadRequest("embedder is required: the name of an embedding model", param="embedder")
    services, caller = runtime(request), principal(request)
    try:
        model = services.models.resolve(name, caller)
    except ModelNotFound as error:
        raise ModelNotFound(str(error), param="embedder") from None
    if not model.embeds:
        raise BadRequest(f"model {name} makes no embeddings; name one that does", param="embedder")
    await services.pipeline.authorize(caller, "models.use", name)


def _object(found: StoreStatus, *, manages: bool) -> ReindexObject:
    """Which files failed is for those alone who manage access: a store may hold some that are not for others."""
    second = found.reindex
    if second is not None and not manages:
        second = msgspec.structs.replace(second, failures={})
    return ReindexObject(
        id=found.id,
        embedder=found.embedder,
        fingerprint=found.fingerprint,
        dimensions=found.dimensions,
        metric=found.metric,
        servable=found.servable,
        reindex=second,
    )
