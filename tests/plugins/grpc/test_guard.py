"""Who may call what by gRPC: each call of each descriptor, found from the descriptors themselves."""

from __future__ import annotations

from contextlib import AsyncExitStack

import grpc
import pytest
from bad_credentials import SQL
from eventually import eventually
from grpc_health.v1 import health_pb2
from grpc_kit import SERVICES, empty, grpc_box, outcome
from grpc_reflection.v1alpha import reflection_pb2
from loopback import HELLO, http_client

from appliance.errors import ConfigError, PluginError
from appliance.plugin import KeyStore
from appliance.storage import audit
from appliance.storage.audit import AuditQuery
from appliance.testing import make_app
from appliance_plugins.grpc import guard, inference_pb2
from appliance_plugins.grpc import inference_pb2 as pb

GUARDED = {"plugins": ["api_keys", "rbac"], "plugin": {"api_keys": {"refresh": 0}}}
CALLS = [(name, method.name) for name, service in SERVICES.items() for method in service.methods]
CHAT = pb.ChatRequest(model="m", messages=[pb.Message(role="user", content="hi")])
HTTP: list[tuple[str, dict[str, object]]] = [
    ("/v1/chat/completions", {"model": "m", "messages": HELLO}),
    ("/v1/messages", {"model": "m", "messages": HELLO, "max_tokens": 5}),
    ("/v1/responses", {"model": "m", "input": "hi"}),
]
HEALTH, OPEN = "grpc.health.v1.Health", "inference.GRPCInferenceService"


async def key(box, **fields) -> str:
    return (await KeyStore(box.runtime.database).create(name="k", **fields))[1]


async def test_a19_every_call_of_every_service_is_unauthenticated_without_a_credential(tmp_path) -> None:
    async with grpc_box(tmp_path, config=GUARDED, settings={"reflection": True}) as box:
        assert len(CALLS) >= 19
        for service, method in CALLS:
            for credential in (None, "wrong"):
                code = await outcome(box.call(method, empty(service, method), service, credential))
                assert code == grpc.StatusCode.UNAUTHENTICATED, (service, method, credential)


async def test_a19_every_call_gets_through_to_its_service_with_one(tmp_path) -> None:
    async with grpc_box(tmp_path, config=GUARDED, settings={"reflection": True}) as box:
        refused = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
        for service, method in CALLS:
            assert await outcome(box.call(method, empty(service, method), service, box.admin)) not in refused, method


@pytest.mark.parametrize("path", ["/nope", "/a/b/c", "/appliance.v1.Inference/Nope"])
async def test_a_call_that_there_is_not_is_unimplemented_whatever_its_name(tmp_path, path) -> None:
    async with grpc_box(tmp_path) as box:
        assert await outcome(box.channel.unary_unary(path)(b"", timeout=20)) == grpc.StatusCode.UNIMPLEMENTED


async def test_a_server_about_to_stop_is_told_as_not_serving(tmp_path) -> None:
    serving = health_pb2.HealthCheckResponse
    async with grpc_box(tmp_path) as box:
        watched = aiter(box.call("Watch", health_pb2.HealthCheckRequest(), HEALTH))
        assert (await anext(watched)).status == serving.SERVING
        await box.runtime.context.front.settle(0)
        assert (await anext(watched)).status == serving.NOT_SERVING
        assert (await box.call("Check", health_pb2.HealthCheckRequest(), HEALTH)).status == serving.NOT_SERVING


async def test_whoever_watches_does_not_hold_the_stop_up(tmp_path) -> None:
    """``serving`` waits half a minute for the end."""
    async with AsyncExitStack() as held:
        async with grpc_box(tmp_path, config={"server": {"shutdown_grace": 300}}) as box:
            box.channel = await held.enter_async_context(grpc.aio.insecure_channel(box.address))
            watched = aiter(box.call("Watch", health_pb2.HealthCheckRequest(), HEALTH))
            await anext(watched)
        with pytest.raises(grpc.aio.AioRpcError):
            [status async for status in watched]


async def test_a19_reflection_is_off_by_default(tmp_path) -> None:
    async with grpc_box(tmp_path) as box:
        service = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
        call = box.call("ServerReflectionInfo", empty(service, "ServerReflectionInfo"), service)
        assert await outcome(call) == grpc.StatusCode.UNIMPLEMENTED


async def test_a19_reflection_lists_the_services_where_it_is_on(tmp_path) -> None:
    async with grpc_box(tmp_path, settings={"reflection": True}) as box:
        service = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
        asked = [reflection_pb2.ServerReflectionRequest(list_services="")]
        answer = await anext(aiter(box.call("ServerReflectionInfo", asked, service)))
        assert {found.name for found in answer.list_services_response.service} == set(SERVICES)


def test_a19_a_call_that_names_no_permission_does_not_start(monkeypatch) -> None:
    less = {name: {"Chat": guard.ROUTE} for name in guard.ACCESS}
    monkeypatch.setattr(guard, "ACCESS", less)
    with pytest.raises(PluginError, match="Inference/StreamChat names no permission"):
        guard.check_declared(inference_pb2.DESCRIPTOR.services_by_name.values())


async def test_a19_what_a_key_may_not_do_by_http_it_may_not_do_by_grpc(tmp_path) -> None:
    async with grpc_box(tmp_path, config=GUARDED, settings={"reflection": True}) as box:
        metrics = await key(box, roles=["admin"], scopes=["metrics"])
        chat = pb.ChatRequest(model="m", messages=[pb.Message(role="user", content="hi")])
        assert await outcome(box.call("Chat", chat, key=metrics)) == grpc.StatusCode.PERMISSION_DENIED
        assert await outcome(box.call("ListModels", pb.ListModelsRequest(), key=metrics)) == (
            grpc.StatusCode.PERMISSION_DENIED
        )
        model_ready = box.call("ModelReady", empty(OPEN, "ModelReady"), OPEN, metrics)
        assert await outcome(model_ready) == grpc.StatusCode.PERMISSION_DENIED
        assert await outcome(box.call("Check", empty(HEALTH, "Check"), HEALTH, metrics)) == grpc.StatusCode.OK
        assert box.engine.diaries == []


async def test_A16_a_key_has_one_counter_whichever_protocol_and_form_of_chat_it_comes_by(tmp_path) -> None:
    limits = {"limits": {"key": {"requests_per_day": 6}}}
    config = {"plugins": ["api_keys", "rbac", "limits"], "plugin": GUARDED["plugin"] | limits}
    async with grpc_box(tmp_path, config=config) as box, http_client(base_url=box.url, timeout=20) as client:
        left: list[str] = []
        for name, (path, body) in zip(("authorization", "api-key", "x-api-key"), HTTP, strict=True):
            sent = (name, f"Bearer {box.admin}" if name == "authorization" else box.admin)
            call = box.call("Chat", CHAT, metadata=[sent])
            await call
            left.append(dict(await call.initial_metadata())["x-ratelimit-remaining-requests"])
            reply = await client.post(path, json=body, headers=dict([sent]))
            assert reply.status_code == 200, reply.text
            left.append(reply.headers["x-ratelimit-remaining-requests"])
        assert left == ["5", "4", "3", "2", "1", "0"]
        assert await outcome(box.call("Chat", CHAT, key=box.admin)) == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a18_an_enforced_host_keeps_no_call_out(tmp_path) -> None:
    config = GUARDED | {"server": {"enforce_allowed_hosts": True}}
    async with grpc_box(tmp_path, config=config) as box:
        assert (await box.call("ListModels", pb.ListModelsRequest(), key=box.admin)).data


async def test_A2_two_credentials_at_once_are_refused_by_every_call(tmp_path) -> None:
    """Also the same twice: whoever stands in between may have heeded the other one."""
    async with grpc_box(tmp_path, config=GUARDED, settings={"reflection": True}) as box:
        good, wrong = ("authorization", f"Bearer {box.admin}"), ("authorization", "Bearer wrong")
        for service, method in CALLS:
            for metadata in ((good, good), (wrong, good), (good, wrong), (good, ("x-api-key", "wrong"))):
                code = await outcome(box.call(method, empty(service, method), service, metadata=metadata))
                assert code == grpc.StatusCode.INVALID_ARGUMENT, (service, method, metadata)


async def test_A15_sql_in_the_metadata_is_a_wrong_credential(tmp_path) -> None:
    async with grpc_box(tmp_path, config=GUARDED) as box:
        told = set()
        for name in ("authorization", "api-key", "x-api-key"):
            for text in SQL:
                sent = [(name, f"Bearer {text}" if name == "authorization" else text)]
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await box.call("ListModels", pb.ListModelsRequest(), metadata=sent)
                told.add((caught.value.code(), caught.value.details()))
        assert [code for code, _ in told] == [grpc.StatusCode.UNAUTHENTICATED]
        assert (await box.call("ListModels", pb.ListModelsRequest(), key=box.admin)).data, "the table is still there"


async def test_the_caller_and_its_address_are_in_the_audit_log(tmp_path) -> None:
    async with grpc_box(tmp_path, config=GUARDED) as box:
        await outcome(box.call("ListModels", pb.ListModelsRequest(), key="wrong"))

        async def told() -> bool:
            async with box.runtime.database.session(write=False) as session:
                found = [record async for record in audit.records(session, AuditQuery(outcome="failure"))]
            return [(record.action, record.address) for record in found] == [("authentication", "127.0.0.1")]

        await eventually(told)


async def test_A20_an_open_address_without_credentials_does_not_start(tmp_path) -> None:
    config = {"models": [], "plugins": ["grpc"], "plugin": {"grpc": {"host": "0.0.0.0", "port": 0}}}
    with pytest.raises(ConfigError, match=r"plugin\.grpc\.host"):
        await make_app(config, folder=tmp_path).state.runtime.start()


@pytest.mark.parametrize(
    "settings", [{"tls_key": "k.pem"}, {"tls_client_ca": "ca.pem"}, {"tls_key": "no.pem", "tls_certificate": "no.pem"}]
)
async def test_half_a_tls_configuration_does_not_start(tmp_path, settings) -> None:
    config = {"models": [], "plugins": ["grpc"], "plugin": {"grpc": {"port": 0, **settings}}}
    with pytest.raises(ConfigError, match=r"plugin\.grpc"):
        await make_app(config, folder=tmp_path).state.runtime.start()
