"""Filters of attributes in SQL mean the same as they do in Python, on both databases."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import select

from appliance.knowledge.filters import Filter, Scalar, matches, parse_filter
from appliance.storage.attributes import condition
from appliance.storage.database import Database
from appliance.storage.ids import now, now_us
from appliance.storage.tables import File, StoreFile, VectorStore

VALUES: list[Scalar] = ["x", "Z", "é", "1", "true", "", 1, 0, 1.5, -3, True, False]
KEYS = ["a", 'with "quotes" and $.dots', "é"]
ROWS: list[Mapping[str, Scalar]] = [
    {},
    *({"a": value} for value in VALUES),
    *({key: "x"} for key in KEYS),
    {"a": 2, "é": "x"},
    {"a": "x", "é": False},
]


def filters() -> list[Filter]:
    single = [
        {"type": type_, "key": "a", "value": value}
        for type_ in ("eq", "ne", "gt", "gte", "lt", "lte")
        for value in VALUES
        if not (isinstance(value, bool) and type_ not in ("eq", "ne"))
    ]
    several = [
        {"type": type_, "key": "a", "value": value}
        for type_ in ("in", "nin")
        for value in ([], ["x"], ["x", 1, True], [1.0, "1"], list(VALUES))
    ]
    named = [{"type": type_, "key": key, "value": "x"} for type_ in ("eq", "ne") for key in KEYS]
    both = [
        {"type": how, "filters": [one, other]}
        for how in ("and", "or")
        for one in (*named, several[-1])
        for other in (single[0], {"type": "or", "filters": [single[20], named[-1]]})
    ]
    parsed = [parse_filter(raw) for raw in (*single, *several, *named, *both)]
    return [tree for tree in parsed if tree is not None]


async def test_a_filter_in_sql_chooses_what_it_chooses_in_python(database: Database) -> None:
    async with database.tenant("default") as session:
        session.add(
            VectorStore(id="vs_1", name="", labels={}, last_active_at=now(), removing=False, created_us=now_us())
        )
        session.add_all(
            File(id=f"file-{i}", filename="a", purpose="assistants", bytes=1, sha256="", created_us=now_us())
            for i in range(len(ROWS))
        )
        await session.flush()
        session.add_all(
            StoreFile(
                store_id="vs_1", file_id=f"file-{i}", version=1, attributes=dict(attributes), chunk_size=100,
                chunk_overlap=0, created_us=i,
            )
            for i, attributes in enumerate(ROWS)
        )  # fmt: skip
    async with database.tenant("default", write=False) as session:
        dialect = session.get_bind().dialect.name
        for tree in filters():
            query = select(StoreFile.created_us).where(condition(tree, dialect)).order_by(StoreFile.created_us)
            found = list((await session.scalars(query)).all())
            assert found == [i for i, attributes in enumerate(ROWS) if matches(tree, attributes)], tree
