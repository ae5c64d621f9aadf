"""The coverage table of docs/api.md is the one in the code, and leaves out no field of any request."""

from __future__ import annotations

import os
import re

import pytest
from coverage_table import DOCUMENT, HEADING, ROOT, SHOWN, TESTS, official_fields, own_fields, replaced, route, text
from fates import COVERAGE

from appliance.http.routes import TABLE

WITH_FIELDS = [route(entry) for entry in TABLE if own_fields(entry)]


def test_the_document_shows_the_table() -> None:
    """``REWRITE_COVERAGE=1`` writes it."""
    document = DOCUMENT.read_text()
    if os.environ.get("REWRITE_COVERAGE"):
        document = replaced(document)
        DOCUMENT.write_text(document)
    section = document.partition(HEADING)[2].partition("\n## ")[0]
    assert f"{HEADING}{section}".strip() == text().strip()


@pytest.mark.parametrize("entry", TABLE, ids=route)
def test_every_field_that_a_route_reads_or_an_official_client_can_send_has_a_fate_and_no_other(entry) -> None:
    name = route(entry)
    assert set(COVERAGE.get(name, ())) == own_fields(entry) | official_fields(name)


def test_no_route_is_in_the_table_that_is_not_served() -> None:
    assert COVERAGE.keys() <= {route(entry) for entry in TABLE}
    assert set(WITH_FIELDS) <= COVERAGE.keys()


def test_every_test_that_the_table_names_is_there() -> None:
    home = (ROOT / "tests/appliance/http/test_coverage.py").read_text()
    for name in TESTS.values():
        assert f"def {name}(" in home
    for (name, field), test in SHOWN.items():
        path, _, function = test.partition("::")
        assert field in COVERAGE[name], (name, field)
        assert re.search(rf"def {function}\(", (ROOT / path).read_text()), test
