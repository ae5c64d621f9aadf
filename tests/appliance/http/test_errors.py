"""What a client must not see is in the log, under the id that it was told: "the log has the details" is true."""

from __future__ import annotations

import logging

import pytest
from eventually import eventually
from inline import provides
from litestar import get
from litestar.exceptions import InternalServerException, NotFoundException
from loopback import assert_openai_error

from appliance.errors import EngineError, StartError
from appliance.testing import Fail

PUBLIC = {"action": "public"}


def told(caplog) -> str:
    """The log's errors, with their tracebacks."""
    found = [record for record in caplog.records if record.levelno == logging.ERROR]
    return "\n".join(logging.Formatter().format(record) for record in found)


@pytest.mark.parametrize("error", [StartError("the folder secret is not there"), RuntimeError("the folder secret")])
async def test_the_log_has_the_details_of_every_generic_500(box, caplog, error) -> None:
    async with box([Fail(error=error)]) as b:
        reply = await b.chat()
        assert "internal error" in assert_openai_error(reply, 500)["message"]
        assert "secret" not in reply.text
        assert reply.headers["x-request-id"] in told(caplog)
        assert "the folder secret" in told(caplog)


async def test_an_error_that_the_client_is_told_as_it_is_is_no_fault_in_the_log(box, caplog) -> None:
    async with box([Fail(error=EngineError("the engine broke off"))]) as b:
        assert_openai_error(await b.chat(), 502)
        assert_openai_error(await b.client.get("/nowhere"), 404)
        assert told(caplog) == ""


@get("/failing", opt=PUBLIC)
async def failing() -> str:
    raise InternalServerException("in a library")


@get("/missing", opt=PUBLIC)
async def missing() -> str:
    raise NotFoundException


async def test_a_5xx_of_the_framework_is_in_the_log_too(box, caplog) -> None:
    async with box(own=provides(routes=[failing, missing])) as b:
        assert_openai_error(await b.client.get("/missing"), 404)
        assert told(caplog) == ""
        assert_openai_error(await b.client.get("/failing"), 500)
        assert "in a library" in told(caplog)


async def test_what_failed_a_background_response_is_in_the_log(box, caplog) -> None:
    async with box([Fail(error=RuntimeError("the real reason"))]) as b:
        made = await b.openai.responses.create(model="m", input="hi", background=True)

        async def failed() -> bool:
            return (await b.openai.responses.retrieve(made.id)).status == "failed"

        await eventually(failed)
        assert made.id in told(caplog)
        assert "the real reason" in told(caplog)
