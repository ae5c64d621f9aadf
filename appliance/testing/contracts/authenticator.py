"""What every ``Authenticator`` must do.

Inherit, and give three fixtures:

    class TestMyTokens(AuthenticatorContract):
        @pytest.fixture
        def authenticator(self): ...          # enabled

        @pytest.fixture
        def good_headers(self): ...           # lower-case header names, a valid credential

        @pytest.fixture
        def bad_headers(self): ...            # a list: credentials of this kind that are not valid

Needs pytest and pytest-asyncio (``asyncio_mode = auto``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from appliance.errors import Unauthenticated
from appliance.protocols import Authenticator
from appliance.types import Principal

ODD_VALUES = (
    "",
    " ",
    "Bearer",
    "Bearer ",
    "bearer  ",
    "Bearer \x00",
    "Bearer " + "a" * 100_000,
    "Bearer a b c",
    "Bearer ' OR 1=1 --",
    "Bearer ü\udcff€".encode("utf-8", "replace").decode("latin-1"),
    "Basic dXNlcjpwYXNz",
    "Bearer ..",
    "Bearer e30.e30.e30",
)


class AuthenticatorContract:
    """``None`` is "not mine", an error "mine but bad", and nothing else ever happens."""

    def test_it_is_an_enabled_authenticator(self, authenticator: Authenticator) -> None:
        assert isinstance(authenticator, Authenticator)
        assert authenticator.enabled

    async def test_a_good_credential_gives_the_same_principal_each_time(
        self, authenticator: Authenticator, good_headers: Mapping[str, str]
    ) -> None:
        first = await authenticator.authenticate(good_headers)
        assert isinstance(first, Principal)
        assert first.id != "anonymous"
        assert await authenticator.authenticate(good_headers) == first

    async def test_no_credential_is_not_mine(self, authenticator: Authenticator) -> None:
        assert await authenticator.authenticate({}) is None
        assert await authenticator.authenticate({"host": "example", "cookie": "a=b"}) is None

    async def test_bad_credentials_are_refused_all_with_the_same_words(
        self, authenticator: Authenticator, bad_headers: Sequence[Mapping[str, str]]
    ) -> None:
        words = set()
        for headers in bad_headers:
            with pytest.raises(Unauthenticated) as caught:
                await authenticator.authenticate(headers)
            words.add(str(caught.value))
        assert len(words) == 1

    @pytest.mark.parametrize("value", ODD_VALUES, ids=range(len(ODD_VALUES)))
    async def test_odd_credentials_give_nothing_and_break_nothing(
        self, authenticator: Authenticator, good_headers: Mapping[str, str], value: str
    ) -> None:
        for name in {"authorization", *good_headers}:
            try:
                assert await authenticator.authenticate({name: value}) is None
            except Unauthenticated as error:
                assert value.strip() not in str(error) or len(value.split()) < 2
