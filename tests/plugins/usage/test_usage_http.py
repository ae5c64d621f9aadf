"""``GET /v1/usage`` and ``/v1/organization/usage``: right sums, own rows only, OpenAI's form, clear refusals."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from eventually import eventually
from inline import Keys, provides
from loopback import assert_openai_error, box, connection, request_bytes

from appliance.plugin import BadRequest, Principal
from appliance.testing import Emit, Fail, Wait
from appliance_plugins.usage.routes import parse_query

CONFIG = {
    "plugins": ["rbac", "usage"],
    "models": [
        {"name": "m", "engine": "scripted", "price": {"input": 1, "output": 10}},
        {"name": "free", "engine": "scripted"},
    ],
    "plugin": {"usage": {"interval": 60}},
}
TODAY = date(2026, 11, 30)
PEOPLE = {
    "alice": Principal(id="key:k1", user="alice", key="k1", roles=("user",)),
    "alice2": Principal(id="key:k2", user="alice", key="k2", roles=("user",)),
    "bob": Principal(id="user:i|bob", user="bob", roles=("user",)),
    "robot": Principal(id="key:k3", key="k3", roles=("user",)),
    "robot2": Principal(id="key:k4", key="k4", roles=("user",)),
    "auditor": Principal(id="user:i|aud", user="aud", roles=("auditor",)),
    "operator": Principal(id="user:i|ops", tenant="elsewhere", user="ops", roles=("operator",)),
    "nobody": Principal(id="user:i|no", user="no"),
}


def bearer(who: str) -> dict[str, str]:
    return {"authorization": f"Bearer {who}"}


class Office:
    """The served app, asked on behalf of somebody."""

    def __init__(self, served: Any) -> None:
        self.served, self.client = served, served.client

    async def chat(self, who: str, **fields: Any) -> httpx.Response:
        body = {"model": "m", "messages": [{"role": "user", "content": "one two"}]} | fields
        return await self.client.post("/v1/chat/completions", json=body, headers=bearer(who))

    async def usage(self, who: str, path: str = "/v1/usage", **query: Any) -> dict:
        answer = await self.client.get(path, params=query, headers=bearer(who))
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def today(self, who: str, path: str = "/v1/usage", **query: Any) -> list[dict]:
        return (await self.usage(who, path, **query))["data"][-1]["results"]

    async def everything(self, who: str = "auditor", **query: Any) -> list[dict]:
        return await self.today(who, "/v1/organization/usage", **query)


@asynccontextmanager
async def office(folder: Path, script: Any = None):
    chosen = script or [Emit("a "), Emit("b "), Emit("c")]
    async with box(folder, chosen, CONFIG, people=provides(authenticators=[Keys(PEOPLE)])) as served:
        yield Office(served)


@pytest.fixture
async def app(tmp_path: Path):
    async with office(tmp_path) as made:
        yield made


async def test_an_answered_call_is_in_the_next_report(app: Office) -> None:
    await app.chat("alice")
    (result,) = await app.today("alice")
    assert result == {
        "object": "usage.result",
        "num_model_requests": 1,
        "num_errors": 0,
        "num_aborted": 0,
        "input_tokens": 2,
        "input_cached_tokens": 0,
        "output_tokens": 3,
        "retrieved_tokens": 0,
        "retrieved_passages": 0,
        "cost": 0.000032,
        "user_id": None,
        "api_key_id": None,
        "model": None,
        "operation": None,
    }


async def test_a_stream_counts_as_a_plain_answer_does(app: Office) -> None:
    await app.chat("alice", stream=True)
    (result,) = await app.today("alice")
    assert (result["num_model_requests"], result["input_tokens"], result["output_tokens"]) == (1, 2, 3)


async def test_sending_the_same_request_id_again_hides_no_call(app: Office) -> None:
    for _ in range(3):
        body = {"model": "m", "messages": [{"role": "user", "content": "one two"}]}
        await app.client.post("/v1/chat/completions", json=body, headers=bearer("alice") | {"x-request-id": "same"})
    (result,) = await app.today("alice")
    assert result["num_model_requests"] == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_sent_again_under_its_idempotency_key_counts_once(app: Office, stream: bool) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "one two"}], "stream": stream}
    headers = bearer("alice") | {"idempotency-key": "k-1"}
    answers = [await app.client.post("/v1/chat/completions", json=body, headers=headers) for _ in range(3)]
    assert len({answer.content for answer in answers}) == 1
    assert [answer.headers.get("idempotent-replayed") for answer in answers] == [None, "true", "true"]
    (result,) = await app.today("alice")
    counted = result["num_model_requests"], result["input_tokens"], result["output_tokens"], result["cost"]
    assert counted == (1, 2, 3, 0.000032)


async def test_a_stream_left_at_token_k_counts_prompt_and_k_tokens_once(tmp_path: Path) -> None:
    async with office(tmp_path, [Emit("piece "), Emit("piece "), Wait(30)]) as app:
        async with asyncio.timeout(20), connection(app.served.url) as (reader, writer):
            body = {"model": "m", "messages": [{"role": "user", "content": "one two"}], "stream": True}
            writer.write(request_bytes("/v1/chat/completions", body, headers=bearer("alice")))
            seen = b""
            while seen.count(b"piece") < 2:
                seen += await reader.read(4096)
        found = await eventually(lambda: app.today("alice"))
    assert [(r["num_model_requests"], r["num_aborted"], r["input_tokens"], r["output_tokens"]) for r in found] == [
        (1, 1, 2, 2)
    ]


async def test_failed_and_refused_calls_count_as_errors(tmp_path: Path) -> None:
    async with office(tmp_path, [Fail()]) as app:
        assert (await app.chat("alice")).status_code == 502
        assert (await app.chat("nobody")).status_code == 403
        errors = await app.everything(group_by="user_id")
    assert {r["user_id"]: (r["num_model_requests"], r["num_errors"]) for r in errors} == {
        "alice": (1, 1),
        "no": (1, 1),
    }


async def test_a_user_sees_their_own_usage_over_all_their_keys(app: Office) -> None:
    for who in ("alice", "alice2", "bob", "robot"):
        await app.chat(who)
    found = await app.today("alice", group_by="api_key_id")
    assert {r["api_key_id"]: r["num_model_requests"] for r in found} == {"k1": 1, "k2": 1}
    assert [r["num_model_requests"] for r in await app.today("bob")] == [1]


async def test_a_key_that_nobody_stands_behind_sees_its_own_usage(app: Office) -> None:
    await app.chat("robot")
    await app.chat("robot2")
    assert [(r["api_key_id"], r["num_model_requests"]) for r in await app.today("robot", group_by="api_key_id")] == [
        ("k3", 1)
    ]


@pytest.mark.parametrize("name", ["user_ids", "user_ids[]"])
async def test_no_filter_opens_the_usage_of_somebody_else(name: str, app: Office) -> None:
    await app.chat("bob")
    assert await app.today("alice", **{name: "bob"}) == []


async def test_the_tenants_usage_needs_a_permission_of_its_own(app: Office) -> None:
    await app.chat("alice")
    await app.chat("bob")
    refused = await app.client.get("/v1/organization/usage", headers=bearer("alice"))
    assert_openai_error(refused, 403)
    assert [r["num_model_requests"] for r in await app.everything()] == [2]


async def test_no_report_holds_another_tenants_rows(app: Office) -> None:
    await app.chat("operator")
    await app.chat("alice")
    assert [r["user_id"] for r in await app.everything("operator", group_by="user_id")] == ["ops"]
    assert [r["user_id"] for r in await app.everything("auditor", group_by="user_id")] == ["alice"]


async def test_without_a_credential_there_is_no_report(app: Office) -> None:
    for path in ("/v1/usage", "/v1/organization/usage"):
        assert_openai_error(await app.client.get(path), 401)
        assert (await app.client.get(path, headers=bearer("nobody"))).status_code == 403


async def test_groups_and_filters_tell_apart_and_keep_to(app: Office) -> None:
    await app.chat("alice")
    await app.chat("alice", model="free")
    await app.client.post("/v1/completions", json={"model": "free", "prompt": "a"}, headers=bearer("bob"))
    found = await app.everything(group_by="user_id,model")
    assert {(r["user_id"], r["model"]): r["cost"] for r in found} == {
        ("alice", "m"): 0.000032,
        ("alice", "free"): 0,
        ("bob", "free"): 0,
    }
    kept = await app.everything(models="free", group_by=["user_id", "operation"])
    assert {(r["user_id"], r["operation"]) for r in kept} == {("alice", "chat"), ("bob", "completion")}
    assert [r["num_model_requests"] for r in await app.everything(**{"operations[]": "completion"})] == [1]


async def test_an_answer_names_its_request_and_head_works(app: Office) -> None:
    answer = await app.client.get("/v1/usage", headers=bearer("alice") | {"x-request-id": "abc"})
    assert answer.headers["x-request-id"] == "abc"
    assert (await app.client.head("/v1/usage", headers=bearer("alice"))).status_code == 200


async def test_buckets_are_days_and_empty_ones_are_there(app: Office) -> None:
    await app.chat("alice")
    page = await app.usage("alice", limit=3)
    starts = [bucket["start_time"] for bucket in page["data"]]
    midnight = int(datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0).timestamp())
    assert starts == [midnight - 2 * 86_400, midnight - 86_400, midnight]
    assert [len(bucket["results"]) for bucket in page["data"]] == [0, 0, 1]
    assert (page["object"], page["has_more"], page["next_page"]) == ("page", False, None)


async def test_pages_follow_each_other(app: Office) -> None:
    query = {"start_time": "2026-11-01", "end_time": "2026-11-08", "limit": 3}
    days, page = [], await app.usage("alice", **query)
    while True:
        days += [bucket["start_time"] for bucket in page["data"]]
        if not page["has_more"]:
            break
        page = await app.usage("alice", **query, page=page["next_page"])
    first = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp())
    assert days == [first + i * 86_400 for i in range(7)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("limit", value) for value in ("0", "32", "-1", "1.5", "x", "", "٣", "999999999999")),
        *(
            (name, value)
            for name in ("start_time", "end_time")
            for value in ("x", "", "-1", "1e9", "9" * 30, "2026-13-01", "٣", "0001-01-01", "9999-12-31", "999999999999")
        ),
        ("start_time", "2999-01-01"),
        ("bucket_width", "1h"),
        ("group_by", "tenant"),
        ("group_by", "day"),
        ("group_by", "model;drop"),
        ("page", "2020-01-01"),
        ("page", "x"),
        ("models", ",".join("x" * 101)),
    ],
)
def test_a_bad_parameter_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_query([(name, value)], TODAY)
    assert caught.value.param == name


async def test_a_refusal_is_a_400_in_openais_form(app: Office) -> None:
    answer = await app.client.get("/v1/usage", params={"group_by": "tenant"}, headers=bearer("alice"))
    assert_openai_error(answer, 400, param="group_by")


# -- the query ---------------------------------------------------------------------------------------------------


def test_without_a_start_the_last_days_are_meant() -> None:
    query = parse_query([], TODAY)
    assert (query.days[0], query.days[-1], len(query.days)) == (date(2026, 10, 31), TODAY, 31)


def test_seconds_and_dates_mean_whole_days_and_the_end_is_not_in() -> None:
    noon = int(datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp())
    assert parse_query([("start_time", str(noon)), ("end_time", str(noon + 1))], TODAY).days == (date(2026, 11, 29),)
    midnight = int(datetime(2026, 11, 30, tzinfo=UTC).timestamp())
    query = parse_query([("start_time", "2026-11-29"), ("end_time", str(midnight))], TODAY)
    assert query.days == (date(2026, 11, 29),)


def test_a_user_id_may_hold_a_comma() -> None:
    assert parse_query([("user_ids", "https://id/a,b|c"), ("models", "x,y")], TODAY).only == {
        "user": ["https://id/a,b|c"],
        "model": ["x", "y"],
    }


def test_a_page_after_the_end_is_refused() -> None:
    with pytest.raises(BadRequest, match="next_page"):
        parse_query([("page", (TODAY + timedelta(days=1)).isoformat())], TODAY)
