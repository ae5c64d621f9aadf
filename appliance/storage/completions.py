"""Rows of stored chat completions. Sessions are bound to a tenant; within it a completion is its maker's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from appliance.errors import NotFound
from appliance.storage import paging
from appliance.storage.tables.completions import CompletionLabel, StoredCompletion
from appliance.storage.tenancy import TenantSession, seen_by


async def get(session: TenantSession, completion_id: str, user: str | None, *, lock: bool = False) -> StoredCompletion:
    """One completion that this user may see; ``lock`` it to change it or its labels. Raises NotFound."""
    query = select(StoredCompletion).where(StoredCompletion.id == completion_id, seen_by(user, StoredCompletion.user))
    found = await session.scalar(query.with_for_update() if lock else query)
    if found is None:
        raise NotFound(
            f"no chat completion has the id {completion_id[:64]!r}; only those made with store can be fetched",
            param="completion_id",
        )
    return found


async def page(
    session: TenantSession,
    wanted: paging.PageRequest,
    user: str | None,
    *,
    model: str | None = None,
    labels: Mapping[str, str],
) -> tuple[Sequence[StoredCompletion], bool]:
    """A page of what this user may see, of one model, with all these labels; and whether more follow.

    The messages, which may be megabytes each, are left in the database.
    """
    query = select(StoredCompletion).where(seen_by(user, StoredCompletion.user))
    query = query.options(defer(StoredCompletion.messages))
    if model is not None:
        query = query.where(StoredCompletion.model == model)
    for key, value in labels.items():
        labelled = select(CompletionLabel.completion_id).where(
            CompletionLabel.key == key, CompletionLabel.value == value
        )
        query = query.where(StoredCompletion.id.in_(labelled))
    return await paging.fetch(session, query, (StoredCompletion.created_us, StoredCompletion.id), wanted)


async def add(session: TenantSession, row: StoredCompletion) -> None:
    """Keep a completion and its labels."""
    session.add(row)
    await session.flush()
    _add_labels(session, row)


async def relabel(session: TenantSession, row: StoredCompletion, labels: Mapping[str, str]) -> None:
    """Give it, which must be locked, other labels instead of those that it has."""
    await session.execute(delete(CompletionLabel).where(CompletionLabel.completion_id == row.id))
    row.labels = dict(labels)
    _add_labels(session, row)


async def prune(session: AsyncSession, before_us: int) -> None:
    """Delete those of all tenants that were made before a time, in microseconds since 1970."""
    await session.execute(delete(StoredCompletion).where(StoredCompletion.created_us < before_us))


def _add_labels(session: TenantSession, row: StoredCompletion) -> None:
    session.add_all(CompletionLabel(completion_id=row.id, key=key, value=value) for key, value in row.labels.items())
