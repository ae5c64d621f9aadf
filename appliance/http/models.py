"""``GET /v1/models`` and ``GET /v1/models/{id}``; ids may hold slashes. Anthropic's clients get their own form."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from litestar import Response

from appliance.errors import ModelNotFound
from appliance.http.requests import HttpRequest, answer, principal, runtime
from appliance.models.registry import Model


class ModelObject(msgspec.Struct, kw_only=True):
    """OpenAI's model object."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "appliance"


class ModelList(msgspec.Struct, kw_only=True):
    """OpenAI's list of models."""

    object: str = "list"
    data: list[ModelObject]


class ModelInfo(msgspec.Struct, kw_only=True):
    """Anthropic's model object."""

    type: str = "model"
    id: str
    display_name: str
    created_at: datetime
    lifecycle: str = "active"


class ModelInfoList(msgspec.Struct, kw_only=True):
    """Anthropic's list of models, all on one page."""

    data: list[ModelInfo]
    first_id: str | None
    last_id: str | None
    has_more: bool = False


async def list_models(request: HttpRequest) -> Response[bytes]:
    """List the models that the caller may use."""
    models = runtime(request).models
    usable = [model for model in models.of(principal(request)) if await _may_use(request, model)]
    allowed = [model.name for model in await _within_reach(request, usable)]
    if not _for_anthropic(request):
        return answer(ModelList(data=[ModelObject(id=name, created=models.created) for name in allowed]))
    first, last = (allowed[0], allowed[-1]) if allowed else (None, None)
    return answer(ModelInfoList(data=[_info(name, models.created) for name in allowed], first_id=first, last_id=last))


async def get_model(request: HttpRequest) -> Response[bytes]:
    """One model by id."""
    models = runtime(request).models
    model = models.resolve(str(request.path_params["model_id"]).lstrip("/"), principal(request))
    if not await _may_use(request, model) or not await _within_reach(request, [model]):
        raise ModelNotFound("there is no model of that name; GET /v1/models lists them", param="model")
    if _for_anthropic(request):
        return answer(_info(model.name, models.created))
    return answer(ModelObject(id=model.name, created=models.created))


def _for_anthropic(request: HttpRequest) -> bool:
    """Anthropic's clients name the version of its API in every request; OpenAI's never do."""
    return "anthropic-version" in request.headers


def _info(name: str, created: int) -> ModelInfo:
    return ModelInfo(id=name, display_name=name, created_at=datetime.fromtimestamp(created, UTC))


async def _within_reach(request: HttpRequest, models: Sequence[Model]) -> Sequence[Model]:
    """Without those that search vector stores which are not there for the caller: every chat with them would be 404."""
    retriever = runtime(request).pipeline.retriever
    return models if retriever is None else await retriever.bound_within_reach(models, principal(request))


async def _may_use(request: HttpRequest, model: Model) -> bool:
    return await runtime(request).pipeline.may(principal(request), "models.use", model.name)
