"""How the server starts beside the other parts of the appliance."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys
import uvloop
from pathlib import Path
from appliance.testing import ScriptedPlugin, make_app, serving

async def main():
    config = {"plugins": ["grpc"], "models": [{"name": "m", "engine": "scripted"}], "plugin": {"grpc": {"port": 0}}}
    app = make_app(config, {"scripted": ScriptedPlugin()}, folder=Path(sys.argv[1]))
    async with serving(app):
        import grpc  # not before the appliance: the library reads its settings when it is loaded

        listening = app.state.runtime.context.front.listening["gRPC"]
        async with grpc.aio.insecure_channel(listening) as channel:
            await channel.channel_ready()
            child = await asyncio.create_subprocess_exec("true")
            await child.wait()
    print(listening)

uvloop.run(main())
"""


def test_a_child_that_is_started_beside_grpc_makes_it_say_nothing(tmp_path) -> None:
    """uvloop forks for each child; gRPC's core would write of it on the terminal, past all logging."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")
    assert "fork" not in done.stderr
