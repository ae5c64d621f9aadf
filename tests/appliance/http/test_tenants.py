"""Two tenants and a caller kept to some stores, over every route: what is not theirs was never there (O-38, B2, B3)."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio
from sqlalchemy import select
from statements import noted
from tenants_kit import CALLERS, World, chat, two_tenants

from appliance.http import openapi
from appliance.http.routes import TABLE, Entry
from appliance.storage.tables import Base, File, Tenanted

REQUIRED = {
    "model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi", "input": "hi", "query": "zebrafinch",
    "file_id": "own", "items": [{"role": "user", "content": "hi"}],
}  # fmt: skip
"""Values for the fields that a body must have, where any of the right type will not do."""
ALSO = {"ResponsesRequest": {"input": "hi"}, "UpdateStoreFile": {"attributes": {}}}
"""Fields that a body must have beside those that its type asks for."""
ONE_OF = {"CreateFileBatch": {"file_ids": ["own"]}}
"""Bodies of which some optional field must be given."""
ID_FIELDS = {
    "file_id": "file_id", "file_ids": "file_id", "input_file_id": "file_id", "part_ids": "part_id",
    "previous_response_id": "response_id", "conversation": "conversation_id",
}  # fmt: skip
"""Body fields that take ids, and the kind of object they name."""
OTHER_IDS = {"tool_call_id", "stop_token_ids", "id", "user_id"}
"""Fields that end like ids and name nothing that is stored."""
VARYING = {"x-request-id", "date", "openai-processing-ms"}
"""Headers that differ from one answer to the next."""
NOT_TAKEN = {("/v1/responses/input_tokens", "previous_response_id"), ("/v1/responses/input_tokens", "conversation")}
"""Fields that a route refuses whatever they name."""
NO_OBJECT = {"model_id"}
"""Path parameters that name nothing of a tenant's."""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory):
    async with two_tenants(tmp_path_factory.mktemp("tenants")) as made:
        yield made


# -- what there is to cross, taken from the route table ----------------------------------------------------


@dataclass(frozen=True)
class Crossing:
    """One request with the places that take ids: path parameters, then a place in the body or ``None``."""

    entry: Entry
    parameters: tuple[str, ...]
    crossed: tuple[str, ...]
    place: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        where = ".".join(map(str, self.place)) or "+".join(self.crossed)
        return f"{self.entry.method} {self.entry.path}: {where}"


def path_of(entry: Entry) -> str:
    """The path; two kinds of objects are called batches."""
    return entry.path.replace("/v1/batches/{batch_id", "/v1/batches/{job_id")


def crossings() -> Iterator[Crossing]:
    """Every way to put ids of others into a request of the table."""
    for entry in TABLE:
        parameters = tuple(name for name in re.findall(r"\{(\w+):", path_of(entry)) if name not in NO_OBJECT)
        for count in range(1, len(parameters) + 1):
            for crossed in itertools.combinations(parameters, count):
                yield Crossing(entry, parameters, crossed)
        for place in id_places(entry.body):
            yield Crossing(entry, parameters, (), place)


def schemas() -> Mapping[str, Any]:
    found: Mapping[str, Any] = openapi.build()["components"]["schemas"]
    return found


def id_places(body: type[Any] | None) -> Iterator[tuple[str | int, ...]]:
    """Where a body takes ids, by its schema; lists by their first item."""
    if body is not None:
        yield from _id_places({"$ref": f"#/components/schemas/{body.__name__}"}, ())


def _id_places(schema: Mapping[str, Any], path: tuple[str | int, ...]) -> Iterator[tuple[str | int, ...]]:
    if len(path) > 8:
        return
    if reference := schema.get("$ref"):
        yield from _id_places(schemas()[reference.rpartition("/")[2]], path)
    for option in schema.get("anyOf", ()):
        yield from _id_places(option, path)
    if isinstance(schema.get("items"), dict):
        yield from _id_places(schema["items"], (*path, 0))
    for name, inner in schema.get("properties", {}).items():
        if name in ID_FIELDS:
            yield (*path, name, 0) if name.endswith("s") else (*path, name)
        else:
            assert name in OTHER_IDS or not re.search(r"(^|_)ids?$", name), f"{name}: add it to this test's tables"
            yield from _id_places(inner, (*path, name))


def body_of(entry: Entry, own: Mapping[str, str]) -> dict[str, Any] | None:
    """The least body that the route takes, with the caller's own ids."""
    if entry.body is None:
        return None
    name = entry.body.__name__
    body = sample({"$ref": f"#/components/schemas/{name}"}) | ALSO.get(name, {}) | ONE_OF.get(name, {})
    return filled(body, own["file_id"])


def sample(schema: Mapping[str, Any]) -> Any:
    """The least value of a schema."""
    if reference := schema.get("$ref"):
        return sample(schemas()[reference.rpartition("/")[2]])
    if options := schema.get("anyOf"):
        return sample(options[0])
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        return {name: REQUIRED.get(name) or sample(properties[name]) for name in schema.get("required", ())}
    if schema.get("type") == "array":
        return [sample(schema["items"])] if isinstance(schema.get("items"), dict) else []
    return schema.get("enum", [{"integer": 1, "number": 1, "boolean": True}.get(schema.get("type", ""), "x")])[0]


def filled(value: Any, own: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(item, own) for name, item in value.items()}
    if isinstance(value, list):
        return [filled(item, own) for item in value]
    return own if value == "own" else copy.deepcopy(value)


def put(body: Any, place: tuple[str | int, ...], value: str) -> Any:
    """The body with a value at a place; what is not there yet is made."""
    if not place:
        return value
    head, *rest = place
    if head == 0:
        return [put(body[0] if body else {}, tuple(rest), value)]
    return {**(body or {}), head: put((body or {}).get(head), tuple(rest), value)}


def request_of(crossing: Crossing, own: Mapping[str, str], others: Mapping[str, str]) -> tuple[str, str, Any]:
    """Method, path and body, with ``others`` where the crossing says so."""
    ids = {name: others[name] if name in crossing.crossed else own[name] for name in crossing.parameters}
    path = re.sub(r"\{(\w+):\w+\}", lambda found: ids[found[1]], path_of(crossing.entry))
    if not crossing.place:
        return crossing.entry.method, path, body_of(crossing.entry, own)
    kind = ID_FIELDS[next(part for part in reversed(crossing.place) if part in ID_FIELDS)]
    base = {} if crossing.entry.body and crossing.entry.body.__name__ in ONE_OF else body_of(crossing.entry, own)
    return crossing.entry.method, path, put(base, crossing.place, others[kind])


CROSSINGS = list(crossings())


@contextmanager
def statements(world: World) -> Iterator[list[str]]:
    """The statements on rows of one tenant that requests run meanwhile."""
    seen: list[str] = []

    def note(statement: str) -> None:
        if "tenant = " in statement and "audit" not in statement:
            seen.append(statement)

    with noted(world.app.state.runtime.database, note):
        yield seen


async def everything_of(world: World, tenant: str) -> list[str]:
    """All rows of a tenant in all tables but the log's, as texts."""
    models = [mapper.class_ for mapper in Base.registry.mappers if issubclass(mapper.class_, Tenanted)]
    kept = [model for model in models if not model.__tablename__.startswith(("audit", "usage"))]
    rows = []
    async with world.app.state.runtime.database.session(write=False) as session:
        for model in kept:
            table = model.__table__
            found = await session.execute(select(table).where(table.c.tenant == tenant))
            rows += [f"{table.name} {row}" for row in found.all()]
    return sorted(rows)


async def assert_the_same(world: World, caller: str, crossing: Crossing, own: Mapping[str, str], theirs) -> None:
    """Ids of others and ids of nothing: the same status, headers and bytes, after the same statements."""
    unknown = {name: world.unknown(value) for name, value in theirs.items()}
    answers, ran = [], []
    for others in (theirs, unknown):
        method, path, body = request_of(crossing, own, others)
        with statements(world) as seen:
            answers.append(await world.clients[caller].request(method, path, json=body))
        ran.append(seen)
    status = 400 if (crossing.entry.path, *crossing.place[:1]) in NOT_TAKEN else 404
    assert [answer.status_code for answer in answers] == [status] * 2, [answer.text for answer in answers]
    texts, headers = [], []
    for answer in answers:
        texts.append(answer.text)
        headers.append({k: v for k, v in answer.headers.items() if k not in VARYING})
    for name, value in theirs.items():
        texts[0] = texts[0].replace(value, unknown[name])
    assert texts[0] == texts[1]
    assert headers[0] == headers[1]
    assert ran[0] == ran[1]
    assert ran[0] or status == 400


async def test_the_table_has_places_to_cross() -> None:
    assert len(CROSSINGS) > 25
    assert {str(c.place) for c in CROSSINGS if c.place} >= {"('file_ids', 0)", "('files', 0, 'file_id')"}


@pytest.mark.parametrize("crossing", CROSSINGS, ids=str)
async def test_o38_ids_of_another_tenant_answer_as_ids_that_never_existed(world, crossing) -> None:
    before = await everything_of(world, "a")
    assert all(any(value in row for row in before) for value in world.foreign.values())
    await assert_the_same(world, "b", crossing, world.own, world.foreign)
    assert await everything_of(world, "a") == before


OF_STORES = [c for c in CROSSINGS if not c.place and "vector_store_id" in c.crossed]


@pytest.mark.parametrize("crossing", OF_STORES, ids=str)
async def test_b2_a_caller_kept_to_some_stores_finds_no_others(world, crossing) -> None:
    before = await everything_of(world, "a")
    await assert_the_same(world, "limited", crossing, world.foreign, world.private)
    assert await everything_of(world, "a") == before


LISTS = [entry for entry in TABLE if entry.method == "GET"]


@pytest.mark.parametrize("cursor", ["after", "before"])
@pytest.mark.parametrize("entry", LISTS, ids=lambda entry: entry.path)
async def test_o38_a_cursor_from_another_tenant_is_as_unknown_as_any(world, entry, cursor) -> None:
    path = re.sub(r"\{(\w+):\w+\}", lambda found: world.own.get(found[1], "m"), path_of(entry))
    plain = await world.clients["b"].get(path)
    is_list = plain.headers["content-type"] == "application/json" and "has_more" in plain.json()
    for foreign in world.foreign.values():
        answers = [
            await world.clients["b"].get(path, params={cursor: value}) for value in (foreign, world.unknown(foreign))
        ]
        assert answers[0].text.replace(foreign, world.unknown(foreign)) == answers[1].text
        assert answers[0].status_code == answers[1].status_code
        if is_list and "content" not in path:
            assert answers[0].status_code in (400, 404)


async def test_o38_lists_and_counts_hold_what_is_ones_own(world) -> None:
    for caller, stores in (
        ("a", {world.foreign["vector_store_id"], world.private["vector_store_id"]}),
        ("b", {world.own["vector_store_id"]}),
        ("limited", {world.foreign["vector_store_id"]}),
        ("c", set()),
    ):
        listed = (await world.clients[caller].get("/v1/vector_stores")).json()
        assert {store["id"] for store in listed["data"]} == stores
        assert all(store["file_counts"]["total"] == 1 for store in listed["data"])
        files = (await world.clients[caller].get("/v1/files")).json()["data"]
        async with world.app.state.runtime.database.session(write=False) as session:
            own = set(await session.scalars(select(File.id).where(File.tenant == CALLERS[caller].tenant)))
        out_of_reach = {world.private["file_id"]} if caller == "limited" else set()
        assert {file["id"] for file in files} == own - out_of_reach


WRITES = [entry for entry in TABLE if entry.body is not None]
NOT_THEIRS = {
    "tenant": "b", "owner": "b", "role": "admin", "roles": ["admin"], "quota": 9, "user_id": "b", "user": "b",
    "id": "x", "principal": {"id": "bob", "tenant": "b"}, "permissions": ["*"], "created_by": "b", "spend_per_day": 9,
}  # fmt: skip
OWNERSHIP = ("tenant", "user", "user_id", "owner", "principal")
"""Columns that say whose a row is."""


def claiming(value: Any) -> Any:
    """The value with fields in each of its objects that only the server may set."""
    if isinstance(value, dict):
        return NOT_THEIRS | {name: claiming(item) for name, item in value.items()}
    return [claiming(item) for item in value] if isinstance(value, list) else value


async def owners(world: World) -> set[str]:
    """Whose all rows are."""
    models = [mapper.class_ for mapper in Base.registry.mappers if issubclass(mapper.class_, Tenanted)]
    columns = [table.c[name] for table in (m.__table__ for m in models) for name in OWNERSHIP if name in table.c]
    async with world.app.state.runtime.database.session(write=False) as session:
        return {
            f"{column}: {value}" for column in columns for value in await session.scalars(select(column).distinct())
        }


@pytest.mark.parametrize("depth", ["at the top", "everywhere"])
@pytest.mark.parametrize("entry", WRITES, ids=lambda entry: entry.path)
async def test_b3_tenant_owner_role_and_quota_in_a_body_change_nothing(world, entry, depth) -> None:
    of_b, before = await everything_of(world, "b"), await owners(world)
    path = re.sub(r"\{(\w+):\w+\}", lambda found: world.private[found[1]], path_of(entry))
    body = body_of(entry, world.private) or {}
    sent = claiming(body) if depth == "everywhere" else NOT_THEIRS | body
    answer = await world.clients["a"].post(path, json=sent, params={"tenant": "b", "owner": "b", "role": "admin"})
    assert answer.status_code in (200, 400, 404), answer.text
    if answer.status_code == 200:
        assert answer.json().get("tenant") in (None, "a")
        assert answer.json().get("id") != "x"
    assert await everything_of(world, "b") == of_b
    assert not [row for row in await owners(world) - before if re.search(r": (b|bob)$|'(b|bob)'", row)]
    if answer.status_code == 200 and answer.json().get("object") == "vector_store" and entry.path.endswith("stores"):
        await world.clients["a"].delete(f"/v1/vector_stores/{answer.json()['id']}")


async def test_b3_a_form_that_names_a_tenant_uploads_into_ones_own(world) -> None:
    of_b = await everything_of(world, "b")
    form = {"purpose": "assistants", "tenant": "b", "owner": "b"}
    answer = await world.clients["a"].post("/v1/files", files={"file": ("a.txt", b"x")}, data=form)
    assert answer.status_code in (200, 400)
    assert await everything_of(world, "b") == of_b
    if answer.status_code == 200:
        await world.clients["a"].delete(f"/v1/files/{answer.json()['id']}")


async def test_a_tenant_sees_its_models_and_no_others(world) -> None:
    listed = {}
    for caller in ("a", "b"):
        listed[caller] = {model["id"] for model in (await world.clients[caller].get("/v1/models")).json()["data"]}
    assert {"secret", "handbook-chat"} <= listed["a"]
    assert listed["b"] == {"m", "words"}, "b may use two more, and lacks the vector stores that they search"
    client = world.clients["b"]
    for method, path, body in (
        ("GET", "/v1/models/{}", None),
        ("POST", "/v1/chat/completions", chat()),
        ("POST", "/v1/chat/completions", chat(stream=True)),
        ("POST", "/v1/completions", {"prompt": "hi"}),
        ("POST", "/v1/embeddings", {"input": "hi"}),
    ):
        answers = [
            await client.request(method, path.format(name), json=body and body | {"model": name})
            for name in ("secret", "nosuch")
        ]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].content == answers[1].content
    assert (await world.clients["a"].post("/v1/chat/completions", json=chat(model="secret"))).status_code == 200


async def test_a_caller_kept_to_some_stores_makes_none_but_those(world) -> None:
    refused = await world.clients["limited"].post("/v1/vector_stores", json={"name": "mine"})
    assert refused.status_code == 403
    made = await world.clients["limited"].post("/v1/vector_stores", json={"name": "handbook"})
    assert made.status_code == 200
    assert (await world.clients["a"].delete(f"/v1/vector_stores/{made.json()['id']}")).status_code == 200


async def test_b2_a_caller_kept_to_some_stores_gets_no_file_that_lies_in_others_alone(world) -> None:
    file, unknown = world.private["file_id"], world.unknown(world.private["file_id"])
    for method, path in (("GET", "/v1/files/{}"), ("GET", "/v1/files/{}/content"), ("DELETE", "/v1/files/{}")):
        answers = [await world.clients["limited"].request(method, path.format(name)) for name in (file, unknown)]
        assert [answer.status_code for answer in answers] == [404, 404]
        assert answers[0].text.replace(file, unknown) == answers[1].text
    shared = world.foreign["file_id"]
    for caller, reached in (("a", file), ("limited", shared)):
        assert (await world.clients[caller].get(f"/v1/files/{reached}/content")).status_code == 200
