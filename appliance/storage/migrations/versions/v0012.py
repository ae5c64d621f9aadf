"""Streams of background responses."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "response_events",
        sa.Column("response_id", sa.String(length=64), nullable=False),
        sa.Column("first", sa.Integer(), nullable=False),
        sa.Column("last", sa.Integer(), nullable=False),
        sa.Column("events", sa.LargeBinary(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["response_id"], ["responses.id"], name="fk_response_events_response_id_responses", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("response_id", "first", name="pk_response_events"),
    )


def downgrade() -> None:
    """Take back; streams of background responses cannot be gone on with any more."""
    op.drop_table("response_events")
