"""Alembic's entry: uses the connection that ``run`` hands over."""

from __future__ import annotations

from alembic import context

from appliance.storage.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,
)
context.run_migrations()
