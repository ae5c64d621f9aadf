"""The settings of document sources: every mistake is told with its place and the fix."""

from __future__ import annotations

import pytest
import yaml

from appliance.config import Config, parse
from appliance.errors import ConfigError

RETRIEVAL = {"vector_store": "memory"}


def checked(tmp_path, *sources: dict[str, object], **retrieval: object) -> Config:
    config = {
        "plugins": ["memory"],
        "models": [{"name": "words", "embedder": "scripted_embedder"}],
        "retrieval": RETRIEVAL | retrieval | {"sources": list(sources)},
    }
    return parse(yaml.safe_dump(config), folder=tmp_path)


def test_a_source_of_each_kind_is_taken(tmp_path) -> None:
    config = checked(
        tmp_path,
        {"name": "a", "store": "s", "folder": "docs", "access": {"groups": ["hr"]}, "attributes": {"n": 1}},
        {"name": "b", "store": "s", "s3": {"url": "s3://bucket/deep/prefix", "endpoint": "http://127.0.0.1:9000"}},
        {"name": "c", "store": "t", "urls": ["https://example.org/a?b=c"], "every": 0},
    )
    assert [source.name for source in config.retrieval.sources] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"folder": "a", "urls": ["https://a.example"]}, r"sources\[0\]: give exactly one of folder, s3 and urls"),
        ({}, "exactly one"),
        ({"folder": "a", "name": "A b"}, r"sources\[0\]\.name"),
        ({"folder": "a", "stor": "x"}, "unknown field `stor`"),
        ({"folder": "a", "max_removed": 2}, r"max_removed"),
        ({"s3": {"url": "bucket/x"}}, r"s3\.url: must be s3://BUCKET"),
        ({"s3": {"url": "s3://bucket", "access_key": "x"}}, "give access_key and secret_key"),
        ({"s3": {"url": "s3://bucket", "endpoint": "http://s3.example.org"}}, r"s3\.endpoint: must be an https URL"),
        ({"urls": ["https://a.example", "http://a.example"]}, r"urls\[1\]: must be an https URL"),
        ({"urls": ["https://user:pass@a.example"]}, "without a user"),
        ({"urls": ["https://[::1"]}, "must be an https URL"),
    ],
)
def test_a_mistake_is_told_with_its_place(tmp_path, source, words) -> None:
    with pytest.raises(ConfigError, match=words):
        checked(tmp_path, {"name": "a", "store": "s"} | source)


def test_two_sources_of_one_name_are_refused(tmp_path) -> None:
    one = {"name": "a", "store": "s", "folder": "x"}
    with pytest.raises(ConfigError, match=r"sources\[1\]\.name: a is there twice"):
        checked(tmp_path, one, one)


def test_a_source_needs_retrieval_and_where_files_are_their_owners_somebody_to_see_it(tmp_path) -> None:
    one = {"name": "a", "store": "s", "folder": "x"}
    with pytest.raises(ConfigError, match=r"set retrieval\.vector_store"):
        checked(tmp_path, one, vector_store=None)
    with pytest.raises(ConfigError, match="say who may see the documents"):
        checked(tmp_path, one, default_access="owner")
    assert checked(tmp_path, one | {"access": {"public": True}}, default_access="owner")
