"""Stored chat completions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "chat_completions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=512), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("messages", sa.JSON(), nullable=False),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_chat_completions"),
    )
    op.create_index("ix_chat_completions_created_us", "chat_completions", ["created_us"], unique=False)
    op.create_index("ix_chat_completions_tenant_created_us", "chat_completions", ["tenant", "created_us"], unique=False)
    op.create_table(
        "chat_completion_metadata",
        sa.Column("completion_id", sa.String(length=64), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("value", sa.String(length=512), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["completion_id"],
            ["chat_completions.id"],
            name="fk_chat_completion_metadata_completion_id_chat_completions",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("completion_id", "key", name="pk_chat_completion_metadata"),
    )
    op.create_index("ix_chat_completion_metadata_key_value", "chat_completion_metadata", ["key", "value"], unique=False)


def downgrade() -> None:
    """Take back."""
    op.drop_table("chat_completion_metadata")
    op.drop_table("chat_completions")
