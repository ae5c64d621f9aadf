"""R30 as a property: whatever is done to documents, each caller finds what is for them, and nothing that is gone.

A machine takes steps over HTTP and keeps beside them, in plain Python, what they must come to. After each step it asks
every replica as every caller. RETRIEVAL_RUNS says how many times it begins anew, RETRIEVAL_SEED repeats a run
(``make fuzz``).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from eventually import until
from hypothesis import Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from retrieval_world import World, over_memory, over_milvus, over_postgres

pytestmark = pytest.mark.slow
RUNS = int(os.environ.get("RETRIEVAL_RUNS", "0"))
SEED = int(os.environ.get("RETRIEVAL_SEED", "30"))
TENANTS = {"manager": "a", "alice": "a", "bob": "a", "eve": "b"}
"""Of the callers. Only the manager manages access; alice and eve have one name, and one group, in different tenants."""
SEEN_BY = {"public": set(TENANTS), "hr": {"alice", "eve"}, "bob": {"bob"}, "nobody": set()}
ACCESS: dict[str, dict[str, Any]] = {
    "public": {"public": True},
    "hr": {"groups": ["hr"]},
    "bob": {"users": ["bob"]},
    "nobody": {},
}
KINDS = ("letter", "invoice")
STRANGERS = (("POST", "/search", {"query": "zebrafinch"}), ("GET", "/files", None), ("GET", "", None))
"""What somebody asks of a store that is not theirs, or not there."""
callers, accesses, kinds = st.sampled_from(sorted(TENANTS)), st.sampled_from(sorted(ACCESS)), st.sampled_from(KINDS)
orders = st.sampled_from(("begin", "begin", "rollback", "finish", "cancel"))


@dataclass
class Place:
    """A document in a store. Until it is settled it may be found or not, by those for whom it is."""

    access: str
    kind: str
    settled: bool = False


@dataclass
class Store:
    id: str
    tenant: str
    there: bool = True
    held: dict[str, Place] = field(default_factory=dict)
    """By the names of the documents."""

    def holds(self, who: str) -> dict[str, Place]:
        """What a caller may find."""
        return {name: place for name, place in self.held.items() if who in SEEN_BY[place.access]}

    def lists(self, who: str) -> dict[str, Place]:
        """What a caller may list, who may find less where they manage access."""
        return dict(self.held) if who == "manager" else self.holds(who)


@dataclass
class Document:
    id: str
    tenant: str
    there: bool = True
    restricted: bool = False
    """Whether some store has held it for some readers only since it was last public in all that hold it."""


class Retrieval(RuleBasedStateMachine):
    """A subclass says what world it is about."""

    restarts = 1
    """How often the servers start again, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = True
        self.rested = False
        """Whether nothing was asked for since all was found to be well."""
        self.store: dict[str, Store] = {}
        self.document: dict[str, Document] = {}
        self.kinds = itertools.cycle((None, KINDS[0], None, KINDS[0], KINDS[0]))  # of odd length: all get all
        self.questions = itertools.cycle(STRANGERS)
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="appliance-machine-")
        self.world = self.made(Path(self.folder.name))
        self.run(self.world.start())
        self.broken = False

    def made(self, folder: Path) -> World:
        raise NotImplementedError

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the servers run until this is done."""

        async def bounded() -> None:
            async with asyncio.timeout(90):
                await work

        before, self.broken = self.broken, True
        self.runner.run(bounded())
        self.broken, self.rested = before, False

    # -- what callers may do ---------------------------------------------------------------------------

    def reaches(self, who: str, store: str) -> bool:
        found = self.store[store]
        return found.there and found.tenant == TENANTS[who]

    def gets(self, who: str, name: str) -> bool:
        """Whether a caller gets the document by itself."""
        found = self.document[name]
        places = [store.held[name] for store in self.store.values() if name in store.held]
        shared = any(who in SEEN_BY[place.access] for place in places if place.access != "public")
        mine = found.there and found.tenant == TENANTS[who]
        return mine and (who == "manager" or not found.restricted or shared)

    def member(self, who: str, store: str, name: str) -> bool:
        """Whether a caller meets the document in the store."""
        return self.reaches(who, store) and name in self.store[store].lists(who)

    # -- steps: mostly with what there is, and by those who may ------------------------------------------

    def by(self, data: st.DataObject, *usual: str) -> str:
        return str(data.draw(st.sampled_from([*usual * 9, *TENANTS]), "by"))

    def a_store(self, data: st.DataObject, tenant: str) -> str:
        mine = [name for name, store in self.store.items() if store.there and store.tenant == tenant]
        return str(data.draw(st.sampled_from([*mine * 9, *self.store]), "store"))

    def a_document(self, data: st.DataObject) -> str:
        there = [name for name, document in self.document.items() if document.there]
        return str(data.draw(st.sampled_from([*there * 9, *self.document]), "document"))

    def a_place(self, data: st.DataObject) -> tuple[str, str]:
        """A store and a document, mostly one that it holds."""
        held = [(store, name) for store, found in self.store.items() for name in found.held]
        pairs = [(store, name) for store in self.store for name in self.document]
        weight = 9 * len(pairs) // max(1, len(held))
        store, name = data.draw(st.sampled_from([*held * weight, *pairs]), "place")
        return str(store), str(name)

    def host(self, store: str) -> str:
        """Who does as they like in the store's tenant, but that eve manages no access."""
        return "manager" if self.store[store].tenant == "a" else "eve"

    @initialize(data=st.data())
    def furnish(self, data: st.DataObject) -> None:
        """Stores and documents of both tenants; most documents are in a store, and settled."""
        for who in ("manager", "bob", "eve"):
            self.make_store(who)
        for who in ("manager", "manager", "alice", "alice", "bob", "eve"):
            self.upload(who)
        for name, document in self.document.items():
            among = (("store2",),) if document.tenant == "b" else (("store0", "store1"), ("store0",), ("store1",))
            for store in data.draw(st.sampled_from(among)):
                self.run(self.attached(self.host(store), store, name, data.draw(accesses), data.draw(kinds)))
        self.run(self.settle())
        self.reindex_and_wait(data, "begin")

    @precondition(lambda self: sum(store.there for store in self.store.values()) < 3)
    @rule(who=callers)
    def make_store(self, who: str) -> None:
        name = f"store{len(self.store)}"

        async def step() -> None:
            made = await self.ask(who, "POST", "/vector_stores", 200, json={"name": name})
            self.store[name] = Store(made["id"], TENANTS[who])
            await self.look(name)

        self.run(step())

    @precondition(lambda self: sum(document.there for document in self.document.values()) < 6)
    @rule(who=callers)
    def upload(self, who: str) -> None:
        name = f"word{len(self.document)}"

        async def step() -> None:
            content = {"file": (f"{name}.txt", f"the zebrafinch sings of {name}".encode())}
            made = await self.ask(who, "POST", "/files", 200, files=content, data={"purpose": "assistants"})
            self.document[name] = Document(made["id"], TENANTS[who])
            await self.look()

        self.run(step())

    @rule(data=st.data(), access=accesses, kind=kinds)
    def attach(self, data: st.DataObject, access: str, kind: str) -> None:
        name = self.a_document(data)
        store = self.a_store(data, self.document[name].tenant)
        self.run(self.attached(self.by(data, self.host(store)), store, name, access, kind))

    @rule(data=st.data(), access=accesses, kind=kinds)
    def attach_and_wait(self, data: st.DataObject, access: str, kind: str) -> None:
        self.attach(data, access, kind)
        self.run(self.settle())

    async def attached(self, who: str, store: str, name: str, access: str, kind: str) -> None:
        held, document = self.store[store].held, self.document[name]
        expected = 200
        if not (self.reaches(who, store) and self.gets(who, name)):
            expected = 404
        elif document.restricted and who != "manager":
            expected = 403
        body = {"file_id": document.id, "access": ACCESS[access], "attributes": {"kind": kind}}
        await self.ask(who, "POST", self.at(store, "/files"), expected, json=body)
        if expected == 200 and name not in held:
            held[name] = Place(access, kind)
            document.restricted |= access != "public"
        await self.look(store)

    @rule(data=st.data(), access=accesses)
    def share(self, data: st.DataObject, access: str) -> None:
        (store, name), who = self.a_place(data), self.by(data, "manager")
        self.run(self.shared(who, store, name, access))

    async def shared(self, who: str, store: str, name: str, access: str) -> None:
        expected = 404
        if self.member(who, store, name):
            expected = 200 if who == "manager" else 403
        await self.ask(who, "POST", self.of(store, name), expected, json={"access": ACCESS[access]})
        if expected == 200:
            self.store[store].held[name].access = access
            places = [each.held[name] for each in self.store.values() if name in each.held]
            self.document[name].restricted = any(place.access != "public" for place in places)
        await self.look(store)

    @rule(data=st.data(), kind=kinds)
    def describe(self, data: st.DataObject, kind: str) -> None:
        store, name = self.a_place(data)
        self.run(self.described(self.by(data, self.host(store)), store, name, kind))

    async def described(self, who: str, store: str, name: str, kind: str) -> None:
        expected = 200 if self.member(who, store, name) else 404
        await self.ask(who, "POST", self.of(store, name), expected, json={"attributes": {"kind": kind}})
        if expected == 200:
            self.store[store].held[name].kind = kind
        await self.look(store)

    @rule(data=st.data())
    def detach(self, data: st.DataObject) -> None:
        store, name = self.a_place(data)
        who = self.by(data, self.host(store))

        async def step() -> None:
            expected = 200 if self.member(who, store, name) else 404
            await self.ask(who, "DELETE", self.of(store, name), expected)
            if expected == 200:
                del self.store[store].held[name]
            await self.look(store)

        self.run(step())

    @rule(data=st.data())
    def delete_document(self, data: st.DataObject) -> None:
        name, who = self.a_document(data), self.by(data, "manager")

        async def step() -> None:
            expected = 200 if self.gets(who, name) else 404
            await self.ask(who, "DELETE", f"/files/{self.document[name].id}", expected)
            held = [store for store, found in self.store.items() if name in found.held]
            if expected == 200:
                self.document[name].there = False
                for store in held:
                    del self.store[store].held[name]
            await self.look(*held)

        self.run(step())

    @precondition(lambda self: sum(store.there for store in self.store.values()) > 2)
    @rule(data=st.data())
    def delete_store(self, data: st.DataObject) -> None:
        store, who = self.a_store(data, "a"), self.by(data, "manager")

        async def step() -> None:
            expected = 200 if self.reaches(who, store) else 404
            await self.ask(who, "DELETE", self.at(store), expected)
            if expected == 200:
                self.store[store].there = False
                self.store[store].held.clear()
            await self.look(store)

        self.run(step())

    @rule(data=st.data(), step=orders, embedder=st.sampled_from(("new", "old")))
    def reindex(self, data: st.DataObject, step: str, embedder: str) -> None:
        """It goes on by itself, so whether a step can be taken now is no business of this test; what is found is."""
        store = self.a_store(data, "a")
        who = self.by(data, self.host(store))

        async def taken() -> None:
            body = {"step": step} | ({"embedder": embedder} if step == "begin" else {})
            expected = {200, 409} if self.reaches(who, store) else {404}
            await self.ask(who, "POST", self.at(store, "/reindex"), *expected, json=body)
            await self.look(store)

        self.run(taken())

    @rule(data=st.data(), step=st.sampled_from(("rollback", "begin")))
    def reindex_and_wait(self, data: st.DataObject, step: str) -> None:
        """So that there is an earlier collection, which is kept up, and that to go back to it is soon searched."""
        self.reindex(data, step, "new")
        self.run(self.settle())

    @precondition(lambda self: self.restarts > 0)
    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        """What was acknowledged stays; of several replicas the others answer meanwhile."""
        self.restarts -= 1

        async def step() -> None:
            name = self.world.names[which % len(self.world.names)]
            await self.world.stop(name)
            others = [other for other in self.world.names if other != name]
            for store in self.store if others else ():
                await self.look_at(store, others[0])
            await self.world.start(name)
            await self.look(*self.store)

        self.run(step())

    @precondition(lambda self: not self.rested)
    @rule()
    def reconcile(self) -> None:
        self.run(self.all_is_well())
        self.rested = True

    # -- what must hold --------------------------------------------------------------------------------

    async def ask(self, who: str, method: str, path: str, *expected: int, **request: Any) -> Any:
        answer = await self.world.ask(who, method, path, **request)
        return self.checked(answer, who, expected).json()

    def checked(self, answer: httpx.Response, who: str, expected: tuple[int, ...]) -> httpx.Response:
        told = f"{who}: {answer.request.method} {answer.request.url.path}: {answer.text}"
        assert answer.status_code in expected, told
        return answer

    def at(self, store: str, rest: str = "") -> str:
        return f"/vector_stores/{self.store[store].id}{rest}"

    def of(self, store: str, name: str, rest: str = "") -> str:
        return self.at(store, f"/files/{self.document[name].id}{rest}")

    def named(self, ids: set[str]) -> set[str]:
        names = {document.id: name for name, document in self.document.items()}
        return {names[each] for each in ids}

    async def look(self, *stores: str) -> None:
        """Every caller at every replica sees of these stores, and of documents by themselves, what they must."""
        for replica in self.world.names:
            for store in stores:
                await self.look_at(store, replica)
            for who in TENANTS:
                await self.files(who, replica)

    async def look_at(self, store: str, replica: str) -> None:
        for who in TENANTS:
            if self.reaches(who, store):
                await self.searched(who, store, replica)
                await self.listed(who, store, replica)
            else:
                method, rest, body = next(self.questions)
                answer = await self.world.ask(who, method, self.at(store, rest), of=replica, json=body)
                self.checked(answer, who, (404,))

    async def searched(self, who: str, store: str, replica: str) -> None:
        kind, places = next(self.kinds), self.store[store].holds(who)
        body = {"query": "zebrafinch", "max_num_results": 50, "filters": _of_kind(kind)}
        answer = await self.world.ask(who, "POST", self.at(store, "/search"), of=replica, json=body)
        hits = self.checked(answer, who, (200,)).json()["data"]
        found = self.named({hit["file_id"] for hit in hits})
        may = {name for name, place in places.items() if kind in (None, place.kind)}
        must = {name for name in may if places[name].settled}
        assert must <= found <= may, f"{who} finds {found} in {store} at {replica}, not {must} to {may} ({kind})"
        for hit in hits:
            (name,) = self.named({hit["file_id"]})
            assert (hit["filename"], hit["attributes"]) == (f"{name}.txt", {"kind": places[name].kind})
            assert [part["text"] for part in hit["content"]] == [f"the zebrafinch sings of {name}"]

    async def listed(self, who: str, store: str, replica: str) -> None:
        """Files, all or those of one kind, and how many there are."""
        kind, places = next(self.kinds), self.store[store].lists(who)
        params = {"limit": "100"} | ({"filters": json.dumps(_of_kind(kind))} if kind else {})
        answer = await self.world.ask(who, "GET", self.at(store, "/files"), of=replica, params=params)
        found = self.named({entry["id"] for entry in self.checked(answer, who, (200,)).json()["data"]})
        may = {name for name, place in places.items() if kind in (None, place.kind)}
        assert found == may, f"{who} lists {found} in {store} at {replica}, not {may} ({kind})"
        answer = await self.world.ask(who, "GET", self.at(store), of=replica)
        counts = self.checked(answer, who, (200,)).json()["file_counts"]
        settled = sum(place.settled for place in places.values())
        assert counts["total"] == len(places), f"{who}: {counts}"
        assert settled <= counts["completed"] <= len(places), f"{who}: {counts}"

    async def files(self, who: str, replica: str) -> None:
        """Documents by themselves; those that are gone are asked for by their ids too."""
        answer = await self.world.ask(who, "GET", "/files", of=replica)
        found = self.named({entry["id"] for entry in self.checked(answer, who, (200,)).json()["data"]})
        may = {name for name in self.document if self.gets(who, name)}
        assert found == may, f"{who} lists {found} at {replica}, not {may}"
        for document in self.document.values():
            if not document.there:
                for rest in ("", "/content"):
                    answer = await self.world.ask(who, "GET", f"/files/{document.id}{rest}", of=replica)
                    self.checked(answer, who, (404,))

    async def read(self, who: str) -> None:
        """Texts: those of the uploads, and those that stores indexed, which even a manager only reads of their own."""
        for name, document in self.document.items():
            expected = 200 if self.gets(who, name) else 404
            answer = await self.world.ask(who, "GET", f"/files/{document.id}/content")
            assert (self.checked(answer, who, (expected,)).text == f"the zebrafinch sings of {name}") == (
                expected == 200
            )
            for store, found in self.store.items():
                seen = self.reaches(who, store) and name in found.holds(who)
                answer = await self.ask(who, "GET", self.of(store, name, "/content"), 200 if seen else 404)
                if seen:
                    assert [part["text"] for part in answer["data"]] == [f"the zebrafinch sings of {name}"]

    async def chat(self, who: str) -> None:
        """With all stores of one's own: what was given to the model is cited, as it wrote no marker."""
        mine = [store for name, store in self.store.items() if self.reaches(who, name)]
        if not mine:
            return
        tools = [{"type": "file_search", "vector_store_ids": [store.id for store in mine], "max_num_results": 50}]
        body = {"model": "m", "messages": [{"role": "user", "content": "zebrafinch"}], "tools": tools}
        answer = await self.ask(who, "POST", "/chat/completions", 200, json=body)
        cited = self.named({note["file_id"] for note in answer["choices"][0]["message"].get("annotations") or ()})
        may = {name for store in mine for name in store.holds(who)}
        assert cited == may, f"{who} is shown {cited}, not {may}"

    async def settle(self) -> None:
        """Until all is indexed, and no model is being changed."""
        await until(self.settled, 60)
        for store in self.store.values():
            for place in store.held.values():
                place.settled = True

    async def settled(self) -> bool:
        for store, found in self.store.items():
            if not found.there:
                continue
            who = self.host(store)
            entries = await self.ask(who, "GET", self.at(store, "/files"), 200)
            states = {entry["status"] for entry in entries["data"]}
            assert states <= {"in_progress", "completed"}, entries
            second = (await self.ask(who, "GET", self.at(store, "/reindex"), 200))["reindex"]
            if "in_progress" in states or (second and second["status"] != "kept"):
                return False
        return True

    async def all_is_well(self) -> None:
        """Once all is settled: who finds, lists and reads what, and that nothing is left over."""
        await self.settle()
        await self.look(*self.store)
        for who in TENANTS:
            await self.read(who)
            await self.chat(who)
        report = await self.world.reconcile()
        assert report.orphans == 0, report
        expected = sum(len(store.held) for store in self.store.values())
        assert (report.files, report.chunks >= expected) == (expected, True), report
        assert report.stores == sum(store.there for store in self.store.values()), report
        there = {name for name, document in self.document.items() if document.there}
        assert self.named(self.world.bytes_of(document.id for document in self.document.values())) == there

    def teardown(self) -> None:
        try:
            if not self.broken:
                self.run(self.ended())
        finally:
            self.runner.run(self.world.stop())
            self.runner.close()
            self.folder.cleanup()

    async def ended(self) -> None:
        """All is well, after changes in the kept collections too; and of what is deleted nothing is left over."""
        await self.all_is_well()
        for store, found in self.store.items():
            for name, place in found.held.items():
                await self.described(self.host(store), store, name, KINDS[place.kind == KINDS[0]])
                await self.shared(self.host(store), store, name, _after(place.access))
            if found.there:
                await self.ask(
                    self.host(store), "POST", self.at(store, "/reindex"), 200, 409, json={"step": "rollback"}
                )
        await self.settle()
        await self.look(*self.store)
        for store, found in self.store.items():
            if found.there:
                await self.ask(self.host(store), "DELETE", self.at(store), 200)
        report = await self.world.reconcile()
        assert (report.orphans, report.stores, report.files, report.chunks) == (0, 0, 0, 0), report


def _after(access: str) -> str:
    known = sorted(ACCESS)
    return known[(known.index(access) + 1) % len(known)]


def _of_kind(kind: str | None) -> dict[str, str] | None:
    return None if kind is None else {"type": "eq", "key": "kind", "value": kind}


def tried(made: Callable[[Path], World], runs: int, length: int) -> None:
    """Run the machine over such worlds. What goes on beside a step takes its own time, so nothing is shrunk."""

    class Over(Retrieval):
        def made(self, folder: Path) -> World:
            return made(folder)

    run_state_machine_as_test(
        seed(SEED)(Over),
        settings=settings(
            deadline=None,
            max_examples=RUNS or runs,
            stateful_step_count=length,
            database=None,
            phases=[Phase.explicit, Phase.generate],
        ),
    )


@pytest.mark.timeout(0 if RUNS else 120)
@pytest.mark.parametrize("made", [over_memory, over_milvus])
def test_R30_each_caller_finds_what_is_for_them_and_nothing_that_is_gone(made) -> None:
    tried(made, runs=3, length=15)


@pytest.mark.timeout(0 if RUNS else 180)
def test_R30_the_same_at_two_replicas_over_one_postgresql(pgvector_server, monkeypatch) -> None:
    tried(lambda folder: over_postgres(folder, pgvector_server.database(), monkeypatch.setenv), runs=2, length=12)
