"""Deny by default: every route the app has, plugins' included, is closed without a key (case O-15)."""

from __future__ import annotations

import re

import httpx
import pytest
from inline import Everything, Keys, provides
from litestar import get
from loopback import assert_openai_error, build_app, served_in_thread

from appliance.errors import Forbidden, PluginError
from appliance.http.guard import ACTION, DEFERS
from appliance.types import Principal

PUBLIC = {"/livez", "/readyz"}
ODD_PATHS = [
    "//v1/chat/completions", "/v1//models", "/v1/../v1/models", "/V1/models", "/v1/models/", "/v1/models/m/",
    "/%76%31/models", "/v1/models%2f", "/v1/chat/completions/", "/v1/chat/completions?x=/livez",
    "/livez/../v1/models", "/v1/models;/livez", "/v1/models%00", "/./v1/models",
]  # fmt: skip


@get("/plugin/x", opt={ACTION: "admin"}, sync_to_thread=False)
def plugin_route() -> str:
    return "inner data"


class OnlyModels:
    async def authorize(self, principal, action, resource):
        if action not in ("models.read", "models.use"):
            raise Forbidden("this key may use models only")


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    plugins = {
        "keys": provides(authenticators=[Keys()], authorizers=[OnlyModels()]),
        "extra": provides(routes=[plugin_route]),
    }
    app, _ = build_app(tmp_path_factory.mktemp("guarded"), None, {"auth": {"public_docs": False}}, **plugins)
    return app


@pytest.fixture(scope="module")
def client(app):
    with served_in_thread(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client


def operations(app) -> list[tuple[str, str]]:
    """Every (method, path) that Litestar routes; parameters get a value."""
    found = []
    for route in app.routes:
        path = re.sub(r"\{[^}]*\}", "x", route.path)
        methods = getattr(route, "methods", None) or {"GET", "POST", "PUT", "DELETE", "HEAD"}
        found += [(method, path) for method in sorted(methods)]
    return found


def test_every_route_names_an_action(app):
    for route in app.routes:
        for handler in [getattr(route, "route_handler", None), *getattr(route, "route_handlers", [])]:
            if handler is not None and set(getattr(handler, "http_methods", ())) != {"OPTIONS"}:
                assert handler.opt[ACTION], route.path


@pytest.mark.parametrize(
    "headers", [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic Z29vZA=="}, {"x-key": "good"}]
)
def test_o15_every_route_but_the_probes_answers_401_without_a_good_key(app, client, headers):
    assert len(operations(app)) > 20
    for method, path in operations(app):
        response = client.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
        if path in PUBLIC and method == "GET":
            assert response.status_code == 200
        elif path not in PUBLIC:
            assert response.status_code == 401, (method, path, response.text)
            assert response.headers["www-authenticate"].startswith("Bearer")
            if method != "HEAD":
                assert response.json()["error"]["code"] == "invalid_api_key"


@get("/plugin/model", opt={ACTION: "models.use"}, sync_to_thread=False)
def model_route() -> str:
    return "inner data"


@pytest.mark.parametrize(("models", "status"), [(frozenset({"m"}), 200), (None, 403)])
async def test_a_plugins_route_for_whoever_may_use_a_model_is_guarded_too(box, models, status):
    class OnlyM:
        async def authorize(self, principal, action, resource):
            if (action, resource) != ("models.use", "m"):
                raise Forbidden("only m")

    keys = provides(
        authenticators=[Keys({"good": Principal(id="alice", tenant="a", models=models)})], authorizers=[OnlyM()]
    )
    async with box(keys=keys, extra=provides(routes=[model_route])) as b:
        reply = await b.client.get("/plugin/model", headers={"authorization": "Bearer good"})
        assert reply.status_code == status, reply.text


def test_a_plugins_route_cannot_put_off_its_authorization(tmp_path):
    @get("/plugin/late", opt={ACTION: "models.use", DEFERS: True}, sync_to_thread=False)
    def late() -> str:
        return "inner data"

    with pytest.raises(PluginError, match="/plugin/late"):
        build_app(tmp_path, None, None, extra=provides(routes=[late]))


@pytest.mark.parametrize("path", ODD_PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "PUT", "OPTIONS"])
def test_o15_no_odd_path_or_method_gets_around_the_key(client, method, path):
    request = client.build_request(method, client.base_url)
    request.url = request.url.copy_with(raw_path=path.encode())
    response = client.send(request)
    assert response.status_code in (401, 404, 405)
    assert "inner data" not in response.text
    assert '"data"' not in response.text


def test_a_good_key_gets_what_it_may_and_403_for_the_rest(client):
    good = {"authorization": "Bearer good"}
    assert client.get("/v1/models", headers=good).status_code == 200
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    assert client.post("/v1/chat/completions", headers=good, json=chat).status_code == 200
    assert_openai_error(client.get("/plugin/x", headers=good), 403)
    assert_openai_error(client.get("/openapi.json", headers=good), 403)


def test_a_wrong_key_is_refused_before_the_body_is_read(client):
    body = b"[" * 1_000_000
    assert_openai_error(
        client.post("/v1/chat/completions", content=body, headers={"authorization": "Bearer wrong"}), 401
    )


def test_an_authenticator_that_is_not_enabled_guards_nothing(tmp_path):
    keys = provides(authenticators=[Keys(enabled=False)], authorizers=[Everything()])
    app, _ = build_app(tmp_path, None, None, keys=keys)
    with served_in_thread(app) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 200


def test_models_that_a_caller_may_not_use_are_not_listed(tmp_path):
    class NotM:
        async def authorize(self, principal, action, resource):
            if action == "models.use" and resource == "m":
                raise Forbidden("no")

    config = {"models": [{"name": "m", "engine": "scripted"}, {"name": "n", "engine": "scripted"}]}
    app, _ = build_app(tmp_path, None, config, rules=provides(authorizers=[NotM()]))
    with served_in_thread(app) as url, httpx.Client(base_url=url) as client:
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["n"]
        hidden = client.get("/v1/models/m")
        assert (hidden.status_code, hidden.json()) == (404, client.get("/v1/models/nosuch").json())
        chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert_openai_error(client.post("/v1/chat/completions", json=chat), 403)
