"""Streams of background responses, how long their context is, and what a tenant keeps."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None
_COUNTED = ("responses", "conversations", "conversation_items", "uploads", "upload_parts")
"""What is counted by tenant and had no index for it."""


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
    op.add_column("responses", sa.Column("context", sa.BigInteger(), nullable=False, server_default="0"))
    for table in _COUNTED:
        op.create_index(f"ix_{table}_tenant", table, ["tenant"], unique=False)


def downgrade() -> None:
    """Take back; streams of background responses cannot be gone on with any more."""
    for table in _COUNTED:
        op.drop_index(f"ix_{table}_tenant", table_name=table)
    op.drop_column("responses", "context")
    op.drop_table("response_events")
