"""Who gets through which call of gRPC: every call of every descriptor, asked with a key of each role and scope (A16).

tests/auth/golden/calls.json is the answer that was agreed on, as routes.json is for HTTP; write it anew with

    REWRITE_GOLDEN=1 python -m pytest tests/auth/test_call_matrix.py
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_kit import SERVICES, GrpcBox, empty, grpc_box
from guarded import keys_in

from appliance.permissions import ROLES, SCOPES
from appliance.plugin import KeyStore
from appliance_plugins.grpc import inference_pb2 as pb
from appliance_plugins.grpc import open_inference_pb2 as open_pb
from appliance_plugins.grpc.service import NAME, RPCS

GOLDEN = Path(__file__).parent / "golden" / "calls.json"
ROUTES = Path(__file__).parent / "golden" / "routes.json"
CONFIG = {"plugins": ["memory", "documents", "tokens", "api_keys", "rbac"], "retrieval": {"vector_store": "memory"}}
GUARDED = CONFIG | {"plugin": {"api_keys": {"refresh": 0}}}
CALLS = [(name, method.name) for name, service in SERVICES.items() for method in service.methods]
HEADERS = ("authorization", "api-key", "x-api-key")
HELLO = pb.ChatRequest(model="m", messages=[pb.Message(role="user", content="hi")])
TEXT = pb.CompletionRequest(model="m", prompt="hi")
TENSOR = {"name": "text_input", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"hi"]}}
INFER = open_pb.ModelInferRequest(model_name="m", inputs=[TENSOR])
REQUESTS: dict[str, Any] = {
    "Chat": HELLO,
    "StreamChat": HELLO,
    "Complete": TEXT,
    "StreamComplete": TEXT,
    "Embed": pb.EmbeddingRequest(model="words", input=["hi"]),
    "Rerank": pb.RerankRequest(model="m", query="hi", documents=["a"]),
    "Search": pb.SearchRequest(vector_store_id="x", query=["hi"]),
    "ModelReady": open_pb.ModelReadyRequest(name="m"),
    "ModelMetadata": open_pb.ModelMetadataRequest(name="m"),
    "ModelInfer": INFER,
    "ModelStreamInfer": [INFER],
}
"""Good ones for the calls that look into their message before they know what is asked for."""


async def gets_through(box: GrpcBox, service: str, method: str, metadata: list[tuple[str, str]]) -> bool:
    call = box.call(method, REQUESTS.get(method, empty(service, method)), service, metadata=metadata)
    try:
        found = await anext(aiter(call), None) if hasattr(call, "__aiter__") else await call
    except grpc.aio.AioRpcError as error:
        code = error.code()
    else:
        return not getattr(found, "error_message", "")  # as ModelStreamInfer tells an error
    finally:
        call.cancel()
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), method
    return code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


async def matrix(box: GrpcBox, keys: dict[str, str], header: str) -> dict[str, dict[str, object]]:
    async def through(service: str, method: str, key: str) -> bool:
        sent = (header, f"Bearer {key}" if header == "authorization" else key)
        return await gets_through(box, service, method, [sent])

    async def row(service: str, method: str) -> dict[str, object]:
        who = [name for name, key in keys.items() if await through(service, method, key)]
        return {
            "without a key": await gets_through(box, service, method, []),
            "roles": [role for role in ROLES if role in who],
            "scopes": [scope for scope in SCOPES if f"scope {scope}" in who],
        }

    return {f"{service}/{method}": await row(service, method) for service, method in CALLS}


@pytest.mark.slow
async def test_A16_calls_by_roles_and_scopes_are_the_agreed_ones_whichever_metadata_carries_the_key(tmp_path) -> None:
    async with grpc_box(tmp_path, config=GUARDED, settings={"reflection": True}) as box:
        keys = await keys_in(KeyStore(box.runtime.database))
        found = [await matrix(box, keys, header) for header in HEADERS]
    if os.environ.get("REWRITE_GOLDEN"):
        lines = (f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in found[0].items())
        GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert found == [json.loads(GOLDEN.read_text())] * len(HEADERS)


def test_A16_a_call_lets_in_whom_its_route_lets_in() -> None:
    calls, routes = json.loads(GOLDEN.read_text()), json.loads(ROUTES.read_text())
    assert calls.keys() == {f"{service}/{method}" for service, method in CALLS}
    for name, rpc in RPCS.items():
        route = routes[f"{rpc.method} {rpc.path.replace('}', ':str}')}"]
        assert calls[f"{NAME}/{name}"] == {key: route[key] for key in ("without a key", "roles", "scopes")}, name
    assert not any(row["without a key"] for row in calls.values())
