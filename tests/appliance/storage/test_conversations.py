"""What is kept of answers: several changes at once, and no more than fits into memory."""

import asyncio

import pytest
from sqlalchemy import delete, select

from appliance.errors import BadRequest, Conflict, NotFound, RateLimited
from appliance.storage import completions, conversations, responses
from appliance.storage.database import Database
from appliance.storage.ids import new_id, now_us
from appliance.storage.tables.completions import CompletionLabel, StoredCompletion
from appliance.storage.tables.responses import Conversation, ConversationItem, StoredResponse

LARGE = "x" * 2**20


async def made(database: Database, conversation_id: str = "conv_1") -> str:
    async with database.tenant("a") as session:
        session.add(Conversation(id=conversation_id, user=None, created_us=now_us(), labels={}))
    return conversation_id


async def append(database: Database, conversation_id: str, *bodies: dict) -> None:
    async with database.tenant("a") as session:
        found = await conversations.get(session, conversation_id, None, lock=True)
        await conversations.append(session, found, bodies)


def item(text: str = "x", item_id: str | None = None) -> dict:
    return {"id": item_id or new_id("msg_"), "text": text}


async def answered(database: Database, text: str, previous: str | None = None) -> str:
    row = StoredResponse(
        id=new_id("resp_"), user=None, created_us=now_us(), status="completed", previous_id=previous,
        body={"output": []}, input=[item(text)],
    )  # fmt: skip
    async with database.tenant("a") as session:
        session.add(row)
    return row.id


async def test_items_that_come_at_once_all_get_a_place_of_their_own(database) -> None:
    conversation = await made(database)
    same = [item(item_id="same") for _ in range(4)]
    await asyncio.gather(*(append(database, conversation, body) for body in (*same, *(item() for _ in range(8)))))
    async with database.session(write=False) as session:
        places = (await session.scalars(select(ConversationItem.created_us))).all()
    assert (len(places), len(set(places))) == (9, 9)


async def test_who_adds_to_a_conversation_that_is_being_deleted_is_told_that_it_is_gone(database) -> None:
    conversation = await made(database)

    async def remove() -> None:
        async with database.tenant("a") as session:
            await session.delete(await conversations.get(session, conversation, None, lock=True))

    found = await asyncio.gather(
        *(append(database, conversation, item()) for _ in range(6)), remove(), remove(), return_exceptions=True
    )
    assert {type(each) for each in found} <= {type(None), NotFound}
    assert sum(each is None for each in found[-2:]) == 1


async def test_a_row_that_somebody_else_deleted_is_a_conflict_and_no_fault(database) -> None:
    response = await answered(database, "hi")
    with pytest.raises(Conflict):
        await change_what_is_deleted(database, response)


async def change_what_is_deleted(database: Database, response_id: str) -> None:
    async with database.tenant("a") as session:
        row = await responses.get(session, response_id, None)
        row.status = "cancelled"
        with session.no_autoflush:  # as if by another transaction, which SQLite has none beside this one
            query = delete(StoredResponse).where(StoredResponse.id == response_id)
            await session.execute(query, execution_options={"synchronize_session": False})


async def test_C2_a_conversation_that_would_be_too_large_is_refused_before_it_is(database, monkeypatch) -> None:
    monkeypatch.setattr(conversations, "MAX_CONTEXT", 3 * 2**20)
    conversation = await made(database)
    await append(database, conversation, item(LARGE))
    await append(database, conversation, item(LARGE))
    with pytest.raises(BadRequest) as refused:
        await append(database, conversation, item(LARGE))
    assert refused.value.param == "conversation"
    async with database.tenant("a", write=False) as session:
        assert len(await conversations.items(session, conversation)) == 2


async def test_C2_a_chain_that_is_too_large_is_refused_and_not_read(database, monkeypatch) -> None:
    monkeypatch.setattr(responses, "MAX_CONTEXT", 3 * 2**20)
    first = await answered(database, LARGE)
    second = await answered(database, LARGE, first)
    third = await answered(database, LARGE, second)
    async with database.tenant("a", write=False) as session:
        assert len(await responses.turns(session, second, None)) == 2
        with pytest.raises(BadRequest) as refused:
            await responses.turns(session, third, None)
    assert refused.value.param == "previous_response_id"


def queued(tenant: str, number: int) -> StoredResponse:
    return StoredResponse(
        id=f"resp_{tenant}{number}", tenant=tenant, user=None, created_us=number, status="queued", body={}, input=[]
    )


async def claimed(database: Database, limit: int) -> list[str]:
    async with database.session() as session:
        return [row.id for row in await responses.claim(session, limit)]


async def test_B13_tenants_take_turns_with_background_responses_whoever_asked_for_more(database) -> None:
    async with database.session() as session:
        session.add_all(queued("flood", number) for number in range(20))
        session.add_all(queued(tenant, 100) for tenant in ("b", "c"))
    assert set(await claimed(database, 4)) == {"resp_flood0", "resp_flood1", "resp_b100", "resp_c100"}
    async with database.session() as session:
        session.add(queued("b", 200))
    assert await claimed(database, 2) == ["resp_b200", "resp_flood2"]


async def test_R30_no_background_response_is_claimed_by_two(database) -> None:
    async with database.session() as session:
        session.add_all(queued(tenant, number) for tenant in ("a", "b") for number in range(30))
    found = await asyncio.gather(*(claimed(database, 5) for _ in range(12)))
    ids = [each for group in found for each in group]
    assert len(ids) == len(set(ids)) > 4


async def test_C4_a_tenant_may_have_so_many_background_responses_and_others_are_not_concerned(
    database, monkeypatch
) -> None:
    monkeypatch.setattr(responses, "MAX_UNFINISHED", 3)

    async def enqueue(tenant: str, number: int) -> None:
        async with database.tenant(tenant) as session:
            await responses.enqueue(session, queued(tenant, number))

    for number in range(3):
        await enqueue("a", number)
    with pytest.raises(RateLimited):
        await enqueue("a", 3)
    await enqueue("b", 0)


async def test_R30_background_responses_that_come_to_several_processes_at_once_are_as_many_as_may_be(
    several, monkeypatch
) -> None:
    monkeypatch.setattr(responses, "MAX_UNFINISHED", 5)

    async def enqueue(number: int) -> bool:
        try:
            async with several[number % 4].tenant("a") as session:
                await responses.enqueue(session, queued("a", number))
        except RateLimited:
            return False
        return True

    assert sum(await asyncio.gather(*map(enqueue, range(20)))) == 5


async def test_R14_labels_that_are_changed_and_deleted_at_once_are_no_fault(database) -> None:
    async with database.tenant("a") as session:
        row = StoredCompletion(
            id="chatcmpl-1", user=None, created_us=1, model="m", body={}, messages=[], labels={"a": "0"}
        )
        await completions.add(session, row)

    async def relabel(number: int) -> None:
        async with database.tenant("a") as session:
            found = await completions.get(session, "chatcmpl-1", None, lock=True)
            await completions.relabel(session, found, {"a": str(number)})

    async def remove() -> None:
        async with database.tenant("a") as session:
            await session.delete(await completions.get(session, "chatcmpl-1", None, lock=True))

    await asyncio.gather(*(relabel(number) for number in range(6)))
    async with database.session(write=False) as session:
        label = await session.scalar(select(CompletionLabel.value))
        assert (await session.get_one(StoredCompletion, "chatcmpl-1")).labels == {"a": label}
    found = await asyncio.gather(*(relabel(number) for number in range(6)), remove(), remove(), return_exceptions=True)
    assert {type(each) for each in found} <= {type(None), NotFound}


async def test_R14_a_text_longer_than_its_column_is_the_callers_mistake(postgres) -> None:
    database = Database(postgres.database())
    await database.start()
    try:
        with pytest.raises(BadRequest, match="longer"):
            await made(database, "x" * 65)
    finally:
        await database.stop()
