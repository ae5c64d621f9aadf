"""Usage by day."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "usage_days",
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("user_id", sa.String(length=255), nullable=False),
        sa.Column("key_id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("operation", sa.String(length=32), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.Column("aborted", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("retrieved_tokens", sa.BigInteger(), nullable=False),
        sa.Column("retrieved_passages", sa.BigInteger(), nullable=False),
        sa.Column("cost", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("day", "tenant", "user_id", "key_id", "model", "operation", name="pk_usage_days"),
    )
    op.create_table(
        "usage_batches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_usage_batches"),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_table("usage_batches")
    op.drop_table("usage_days")
