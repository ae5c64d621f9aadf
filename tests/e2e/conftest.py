"""The one real appliance of the end-to-end tests: real vLLM, real embedder and Milvus Lite, as `make serve` has it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml
from served import Served

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """``appliance serve`` with the default configuration, but for its data folder; pulled models are shared."""
    folder = tmp_path_factory.mktemp("served")
    config = yaml.safe_load((ROOT / "appliance.yaml").read_text())
    models = Path(os.environ.get("APPLIANCE_TEST_MODELS") or ROOT / "data" / "models")
    (folder / "data").mkdir()
    (folder / "data" / "models").symlink_to(models)
    # Copies: files outside of the configuration's folder are not taken, also not by a link.
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "README.md", folder)
    (folder / "appliance.yaml").write_text(yaml.safe_dump(config))
    with Served(folder / "appliance.yaml") as served:
        yield served


@pytest.fixture
def client(appliance: Served) -> Iterator[openai.OpenAI]:
    """The official client, pointed at the appliance."""
    with openai.OpenAI(base_url=f"{appliance.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client
