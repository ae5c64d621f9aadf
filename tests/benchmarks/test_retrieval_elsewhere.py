"""The benchmark of search on a server of somebody's own: it needs no model of a certain name, and leaves nothing."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from loopback import served_in_thread
from openai import OpenAI

from appliance.testing import make_app
from appliance.testing.scripted_embedder import ScriptedEmbedder
from benchmarks import retrieval
from benchmarks._collections import Collection

CONFIG = {
    "plugins": ["memory", "documents", "tokens"],
    "models": [{"name": "words", "embedder": "scripted_embedder"}],
    "retrieval": {"vector_store": "memory"},
}
COLLECTION = Collection(
    {"finch": "the zebrafinch sings", "turbine": "a turbine runs for hours"},
    {"1": "zebrafinch", "2": "turbine"},
    {"1": {"finch": 1}, "2": {"turbine": 1}},
)


@pytest.mark.slow
def test_a_run_elsewhere_leaves_the_server_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = make_app(CONFIG, {"scripted_embedder": ScriptedEmbedder()}, folder=tmp_path)
    with served_in_thread(app) as url:
        assert retrieval._measure(COLLECTION, Namespace(url=url, key="none")) == 1.0
        with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            assert list(client.vector_stores.list()) == []
            assert list(client.files.list()) == []
    assert "| as configured there | 1.000 |" in capsys.readouterr().out
