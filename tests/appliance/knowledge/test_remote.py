"""The real worker process, asked over its socket."""

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest
from knowledge_kit import Stack, until
from processes import workers_at
from worker_kit import worker

from appliance.config import parse
from appliance.context import AppContext
from appliance.errors import BadRequest, Conflict, ModelNotFound, NotFound, RetrievalUnavailable, StartError
from appliance.knowledge.filters import Comparison, Compound
from appliance.knowledge.messages import Failure, SearchMessage
from appliance.knowledge.remote import RemoteKnowledge, _make_private
from appliance.storage.database import Database
from appliance.types import Scope, Search

pytestmark = pytest.mark.slow


def pid_of(made: Stack) -> int:
    """The worker itself, below its guard."""
    return workers_at(made.knowledge._socket)[0]


async def test_everything_works_through_the_worker(tmp_path, monkeypatch) -> None:
    async with worker(tmp_path, monkeypatch) as made:
        assert made.knowledge.ready
        store = await made.make_store()
        file = await made.add(store, "the zebrafinch sings", lang="en", n=3, old=True, score=0.5)
        where = Compound("and", (Comparison("lang", "in", ("en", "de")), Comparison("n", "gte", 3)))
        (found,) = await made.search(store, "zebrafinch", where=where)
        assert (found.file_id, found.text) == (file, "the zebrafinch sings")
        assert found.attributes == {"lang": "en", "n": 3, "old": True, "score": 0.5}
        assert await made.search(store, "zebrafinch", where=Comparison("lang", "eq", "fr")) == []
        rows = await made.knowledge.embed("words", ["the zebrafinch sings", [1, 2, 3]])
        assert rows.vectors[: 64 * 4] == made.embedder.vector("the zebrafinch sings")
        assert (rows.dimensions, rows.tokens) == (64, (3, 3))
        await made.knowledge.set_attributes(store, file, {"lang": "de"})
        (chunk,) = await made.knowledge.content(store, file, Scope())
        assert (chunk.text, chunk.attributes) == ("the zebrafinch sings", {"lang": "de"})
        await made.knowledge.remove_file(store, file)
        assert await made.search(store, "zebrafinch") == []
        await made.knowledge.remove_store(store)
        with pytest.raises(NotFound) as missing:
            await made.search(store, "zebrafinch")
        assert missing.value.param == "vector_store_id"
        with pytest.raises(ModelNotFound):
            await made.knowledge.embed("unknown", ["x"])
        with pytest.raises(BadRequest):
            await made.knowledge.embed("words", [""])


async def test_a_killed_worker_comes_back_and_calls_wait_for_it(tmp_path, monkeypatch) -> None:
    async with worker(tmp_path, monkeypatch) as made:
        store = await made.make_store()
        await made.add(store, "zebrafinch")
        for _ in range(2):
            os.kill(pid_of(made), signal.SIGKILL)
            assert (await made.knowledge.embed("words", ["zebrafinch"])).dimensions == 64

        async def ready() -> bool:
            return made.knowledge.ready

        await until(ready)
        # A memory store forgets with its process; the rows of the database do not.
        file = await made.upload("zebrafinch again")
        await made.attach(store, file)
        assert (await made.settled(store, file)).status == "completed"


async def test_a_worker_that_cannot_start_says_why_in_one_line(tmp_path, monkeypatch) -> None:
    with pytest.raises(StartError, match="chunker"):
        async with worker(tmp_path, monkeypatch, plugins=["memory", "documents", "scripted_embedder"]):
            pass
    log = (tmp_path / "data" / "logs" / "worker.log").read_text()
    assert "Traceback" not in log


async def test_a_stopped_worker_is_gone_and_calls_are_told(tmp_path, monkeypatch) -> None:
    async with worker(tmp_path, monkeypatch) as made:
        pid = pid_of(made)
        await made.knowledge.stop()
        assert not Path(f"/proc/{pid}").exists()
        with pytest.raises(RetrievalUnavailable):
            await made.knowledge.embed("words", ["x"])
        assert not made.knowledge.ready
        made.knowledge.wake()


async def test_sigterm_ends_the_worker_cleanly(tmp_path, monkeypatch) -> None:
    async with worker(tmp_path, monkeypatch) as made:
        pid = pid_of(made)
        os.kill(pid, signal.SIGTERM)

        async def gone() -> bool:
            return not Path(f"/proc/{pid}").exists()

        await until(gone)
        await asyncio.wait_for(made.knowledge.embed("words", ["x"]), 20)
        assert made.knowledge._child.restarts == 1
        assert "exited with code 0" in made.knowledge._child.last_failure
        assert "Traceback" not in (tmp_path / "data" / "logs" / "worker.log.1").read_text()


@pytest.mark.parametrize(
    "error", [Conflict("c", code="x"), RetrievalUnavailable("r", retry_after=3), NotFound("n", param="p")]
)
def test_errors_keep_their_type_and_fields_on_the_way(error) -> None:
    again = Failure.of(error).error()
    assert type(again) is type(error)
    assert (str(again), again.param, again.code, again.retry_after) == (
        str(error), error.param, error.code, error.retry_after,
    )  # fmt: skip


def test_replicas_on_a_deep_data_folder_find_the_same_socket_and_another_folder_has_another(tmp_path) -> None:
    def socket(data_dir: str) -> Path:
        config = parse(f"data_dir: {data_dir}", folder=tmp_path)
        context = AppContext(config=config, database=Database(config.database_url))
        return RemoteKnowledge(context, tmp_path / "appliance.yaml")._socket

    deep = "x" * 100
    assert socket(deep) == socket(deep) != socket(f"{deep}/y")
    assert len(os.fsencode(socket(deep))) < 100
    assert socket("data") == tmp_path / "data" / "run" / "worker.sock"


def test_a_folder_for_the_socket_that_others_could_use_is_refused(tmp_path) -> None:
    _make_private(tmp_path / "mine")
    _make_private(tmp_path / "mine")
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    for name in ("open", "link"):
        with pytest.raises(StartError, match="belongs to others or is open"):
            _make_private(tmp_path / name)


def test_a_search_survives_the_way() -> None:
    search = Search(
        store_ids=("vs_1",),
        queries=("a", "b"),
        where=Compound("or", (Comparison("a", "in", ("x", 1, True)), Comparison("b", "ne", 1.5))),
        limit=3,
        ranker="none",
    )
    message = SearchMessage.of(search, Scope("t", ("*", "user:u")))
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=SearchMessage)
    assert arrived.search() == search
    assert arrived.scope == message.scope
