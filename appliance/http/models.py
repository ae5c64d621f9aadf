"""``GET /v1/models`` and ``GET /v1/models/{id}``; ids may hold slashes."""

from __future__ import annotations

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


async def list_models(request: HttpRequest) -> Response[bytes]:
    """List the models that the caller may use."""
    models = runtime(request).models
    allowed = [model for model in models.of(principal(request)) if await _may_use(request, model)]
    return answer(ModelList(data=[ModelObject(id=model.name, created=models.created) for model in allowed]))


async def get_model(request: HttpRequest) -> Response[bytes]:
    """One model by id."""
    models = runtime(request).models
    model = models.resolve(str(request.path_params["model_id"]).lstrip("/"), principal(request))
    if not await _may_use(request, model):
        raise ModelNotFound("there is no model of that name; GET /v1/models lists them", param="model")
    return answer(ModelObject(id=model.name, created=models.created))


async def _may_use(request: HttpRequest, model: Model) -> bool:
    return await runtime(request).pipeline.may(principal(request), "models.use", model.name)
