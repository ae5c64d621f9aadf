"""The form in which credentials come: one, whole, and in a header (RFC 6750 sections 2 and 3.1)."""

from __future__ import annotations

import re
from collections.abc import Mapping

from appliance.errors import InvalidCredentials

KEY_HEADERS = ("api-key", "x-api-key")
"""Where a credential may come beside ``Authorization: Bearer``; it means the same in each."""
_IN_QUERY = re.compile(rb"(?:^|&)access_token=")


def check_form(headers: Mapping[str, str], query: bytes = b"") -> bool:
    """Whether there is a credential in the lower-cased ``headers``, good or bad; ``query`` is the raw query string.

    The same credential may come in several headers. Schemes other than Bearer are left to a proxy before us.

    Raises:
        InvalidCredentials: it is empty, one of two, or in the query, where logs would keep it.
    """
    if query and _IN_QUERY.search(query):
        raise InvalidCredentials("a token in the address would stay in logs; send Authorization: Bearer <key>")
    given = {text for name in KEY_HEADERS if (text := headers.get(name, "").strip())}
    scheme, _, token = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        if not token.strip():
            raise InvalidCredentials("Authorization: Bearer came without a key; send Authorization: Bearer <key>")
        given.add(token.strip())
    if len(given) > 1:
        raise InvalidCredentials("two different credentials came at once; send one of them")
    return bool(given)
