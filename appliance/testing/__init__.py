"""The public testing kit: an app from a few lines of configuration, scripted engines, a real server on loopback.

``appliance.testing.contracts`` holds test classes that every engine, store, filter and authenticator inherits.
"""

from __future__ import annotations

from appliance.testing.apps import make_app, make_runtime, serving
from appliance.testing.scripted import CallTool, Emit, Fail, Finish, Hold, ScriptedEngine, ScriptedPlugin, Wait

__all__ = [
    "CallTool",
    "Emit",
    "Fail",
    "Finish",
    "Hold",
    "ScriptedEngine",
    "ScriptedPlugin",
    "Wait",
    "make_app",
    "make_runtime",
    "serving",
]
