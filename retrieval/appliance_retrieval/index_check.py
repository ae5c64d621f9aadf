"""Tries out an index whose code is not ours, before a document is put into it.

Many classes take whatever arguments they are given and heed some: a filter that is passed over would show one tenant
another's documents. So what a query finds is looked at, not what a class says of itself.
"""

from __future__ import annotations

import asyncio
import math
import struct
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import uuid4

from appliance.plugin import StartError
from appliance_retrieval.catalogue import Entry, Selection

if TYPE_CHECKING:
    from appliance_retrieval.catalogued import VectorIndex

CHECK_COLLECTION = "appliance_check"
SECONDS, _AGAIN, _PAUSE = 30.0, 1.0, 0.05
"""How long what was written may take to be found, how long what was replaced, and between two looks."""


async def check_index(index: VectorIndex, dimensions: int) -> bool:
    """Whether writing a key again replaces what was there.

    Raises:
        StartError: a query finds what is not under its labels, or not what is, or what was removed; or another vector
            than the nearest comes first.
    """
    await index.open(CHECK_COLLECTION, dimensions)
    run = uuid4().hex  # labels of a check that was killed are not met again
    near, far = _entry(run, "a", "f", 0.0, dimensions), _entry(run, "b", "g", 0.5, dimensions)
    written = [near, far]
    try:
        await index.add(CHECK_COLLECTION, written)
        await _check_labels(index, near, far)
        await _check_order(index, near, far)
        replaces = await _replaces(index, near, far)
    finally:
        await index.remove(CHECK_COLLECTION, [entry.key for entry in written])
    if not await _finds(index, near, ("a", "b"), set(), SECONDS):
        raise StartError("the vector store goes on finding what was removed; this class cannot be used")
    await index.drop(CHECK_COLLECTION, [])
    return replaces


async def _check_labels(index: VectorIndex, near: Entry, far: Entry) -> None:
    both = {near.key, far.key}
    if not await _finds(index, near, ("a", "b"), both, SECONDS):
        raise StartError("the vector store does not find what was just written; this class cannot be used")
    for access, facets, expected in (
        ("a", None, {near.key}),
        ("b", None, {far.key}),
        ("ab", "f", {near.key}),
        ("ab", "fg", both),
        ("b", "f", set()),
        ("c", None, set()),
    ):
        found = await _nearest(index, near, tuple(access), None if facets is None else tuple(facets))
        if found != sorted(expected):
            raise StartError(
                "the vector store does not heed the filter of a query, so that documents would be shown to others;"
                " this class cannot be used, or not with these settings"
            )


async def _check_order(index: VectorIndex, near: Entry, far: Entry) -> None:
    """A class that makes vectors itself, or keeps them otherwise than they were given, would find anything."""
    run = near.access[:-1]
    for like in (near, far):
        selection = Selection((f"{run}a", f"{run}b"), None)
        if list(await index.nearest(CHECK_COLLECTION, like.vector, 1, selection)) != [like.key]:
            raise StartError(
                "the vector store does not find the nearest vector first; this class cannot be used, or not with these"
                " settings"
            )


async def _replaces(index: VectorIndex, near: Entry, far: Entry) -> bool:
    await index.add(CHECK_COLLECTION, [Entry(near.key, far.access, near.facets, near.vector)])
    both = {near.key, far.key}
    return await _finds(index, near, ("b",), both, _AGAIN) and await _finds(index, near, ("a",), set(), _AGAIN)


async def _finds(index: VectorIndex, like: Entry, access: Sequence[str], expected: set[str], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while await _nearest(index, like, access, None) != sorted(expected):
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(_PAUSE)
    return True


async def _nearest(index: VectorIndex, like: Entry, access: Sequence[str], facets: Sequence[str] | None) -> list[str]:
    run = like.access[:-1]
    selection = Selection(
        tuple(run + letter for letter in access), None if facets is None else tuple(run + letter for letter in facets)
    )
    return sorted(await index.nearest(CHECK_COLLECTION, like.vector, 10, selection))


def _entry(run: str, access: str, facets: str, angle: float, dimensions: int) -> Entry:
    vector = [math.cos(angle), math.sin(angle), *([0.0] * (dimensions - 2))]
    return Entry(str(uuid4()), run + access, run + facets, struct.pack(f"<{dimensions}f", *vector))
