"""A bucket as a source, over a real server of the protocol."""

from __future__ import annotations

import msgspec
from sources_kit import folder

from appliance.source_config import S3Config, SourceConfig


def source(bucket: S3Config, **fields) -> SourceConfig:
    return folder("", **{"folder": None, "s3": bucket, **fields})


async def test_what_is_new_changed_and_gone_in_a_bucket_is_so_in_the_store(bucket, kit) -> None:
    bucket.put(docs__a="zebrafinch a", docs__deep__b="zebrafinch b", other__c="zebrafinch c")
    await kit.use(source(bucket.config("docs")))
    assert (await kit.sync()).added == 2
    assert await kit.texts() == {"a.md": "zebrafinch a", "deep/b.md": "zebrafinch b"}
    assert (await kit.sync()).changed == 0
    bucket.put(docs__a="zebrafinch anew", docs__d="zebrafinch d")
    bucket.delete("docs/deep/b.md")
    report = await kit.sync()
    assert (report.added, report.changed, report.removed, report.error) == (1, 1, 1, None)
    assert await kit.texts() == {"a.md": "zebrafinch anew", "d.md": "zebrafinch d"}


async def test_an_object_under_another_name_is_not_indexed_again(bucket, kit) -> None:
    bucket.put(a="zebrafinch a")
    await kit.use(source(bucket.config()))
    await kit.sync()
    before = (await kit.rows())["a.md"].file_id
    bucket.put(b="zebrafinch a")
    bucket.delete("a.md")
    assert (await kit.sync()).renamed == 1
    assert {key: row.file_id for key, row in (await kit.rows()).items()} == {"b.md": before}


async def test_patterns_choose_among_objects_and_pages_of_a_listing_are_all_read(bucket, kit) -> None:
    bucket.put(**{f"keep__{n}": f"zebrafinch {n}" for n in range(5)}, drop="zebrafinch", __hidden="zebrafinch")
    await kit.use(source(bucket.config(), paths=("keep/*.md",)))
    assert (await kit.sync()).listed == 5


async def test_a_bucket_that_came_back_empty_removes_nothing(bucket, kit) -> None:
    bucket.put(a="zebrafinch a")
    await kit.use(source(bucket.config()))
    await kit.sync()
    bucket.delete("a.md")
    assert "1 of 1 documents are gone" in (await kit.sync()).error
    assert await kit.texts() == {"a.md": "zebrafinch a"}


async def test_a_bucket_that_is_out_of_reach_is_told_and_removes_nothing(bucket, kit) -> None:
    bucket.put(a="zebrafinch a")
    there = bucket.config()
    await kit.use(source(there))
    await kit.sync()
    await kit.use(source(msgspec.structs.replace(there, url="s3://no-such-bucket")))
    report = await kit.sync()
    assert "s3://no-such-bucket cannot be listed" in report.error
    assert "<" not in report.error
    assert "tests" not in report.error
    assert await kit.texts() == {"a.md": "zebrafinch a"}


async def test_an_object_over_the_bound_is_told_and_stops_no_other(bucket, kit) -> None:
    bucket.put(a="zebrafinch a", b="zebrafinch " + "b" * 5000)
    await kit.use(source(bucket.config()))
    small = msgspec.structs.replace(kit.config.server, max_file_bytes=1000)
    kit.service._config = msgspec.structs.replace(kit.config, server=small)
    report = await kit.sync()
    assert "server.max_file_bytes" in report.failures["b.md"]
    assert await kit.texts() == {"a.md": "zebrafinch a"}
