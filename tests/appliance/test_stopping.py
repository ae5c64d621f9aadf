"""The end of an app: one grace for all that runs, and no part that fails keeps another from being stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest
from inline import provides
from loopback import build_app

from appliance.errors import StartError, Unavailable
from appliance.front import Asked
from appliance.serve import _Server, _start_engines

READY = Asked("GET", "/readyz")


@asynccontextmanager
async def life(left: list[str]):
    yield
    left.append("left")


async def fail() -> None:
    raise Unavailable("the database is out of reach")


async def break_down() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("part", ["background", "batches", "housekeeper"])
@pytest.mark.parametrize("stop", [fail, break_down])
async def test_a_part_that_fails_to_stop_is_logged_and_all_others_are_stopped(
    tmp_path, monkeypatch, caplog, part, stop
) -> None:
    left: list[str] = []
    app, plugin = build_app(tmp_path, None, None, own=provides(lifespan=lambda: life(left)))
    runtime = app.state.runtime
    await runtime.start()
    await runtime.start_engines()
    real = getattr(runtime, part)
    with monkeypatch.context() as patch:
        patch.setattr(real, "stop", stop)
        await runtime.stop()
    assert (plugin.engine.ready, left) == (False, ["left"])
    assert "did not stop cleanly" in caplog.text
    await real.stop()


async def test_what_fails_at_the_start_is_told_whatever_fails_to_stop_then(tmp_path, monkeypatch) -> None:
    def broken():
        raise StartError("the real reason")

    app, _ = build_app(tmp_path, None, None, own=provides(lifespan=broken))
    runtime = app.state.runtime
    monkeypatch.setattr(runtime.background, "stop", fail)
    with pytest.raises(StartError, match="the real reason"):
        await runtime.start()


async def test_the_grace_is_one_and_begins_with_the_signal(tmp_path, monkeypatch) -> None:
    app, _ = build_app(tmp_path, None, {"server": {"shutdown_grace": 1000}})
    runtime = app.state.runtime
    await runtime.start()
    await runtime.start_engines()
    front, given = runtime.context.front, []

    async def settle(seconds: float) -> None:
        given.append(seconds)

    try:
        async with front.ask(READY) as reply:
            assert reply.status == 200
        _Server(runtime, app).handle_exit(signal.SIGTERM, None)
        with pytest.raises(Unavailable, match="shutting down"):
            async with front.ask(READY):
                pass
        assert (await runtime.ill())["server"] == "is shutting down"
        monkeypatch.setattr(front, "settle", settle)
        runtime._grace_ends -= 990  # as if HTTP had waited for so long
    finally:
        await runtime.stop()
    assert given == [pytest.approx(10, abs=10)]


async def test_a_server_whose_output_nobody_reads_any_more_can_be_stopped(tmp_path, monkeypatch) -> None:
    app, _ = build_app(tmp_path, None, None)
    runtime = app.state.runtime
    server = _Server(runtime, app)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", output)
            server.handle_exit(signal.SIGTERM, None)
        output.write("what is said later goes nowhere")
    assert (server.should_exit, runtime.draining) == (True, True)


async def test_who_is_cancelled_while_a_start_ends_is_cancelled() -> None:
    began, ending, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def start_engines() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await gate.wait()

    runtime = SimpleNamespace(start_engines=start_engines, unready=lambda: ())
    serving = asyncio.create_task(began.wait())
    starting = asyncio.create_task(_start_engines(runtime, serving))  # type: ignore[arg-type]
    await ending.wait()
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    gate.set()
