"""Browser sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "browser_sessions",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("issuer", sa.String(length=512), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("sid", sa.String(length=255), nullable=True),
        sa.Column("principal", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seen_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_browser_sessions"),
    )
    op.create_index("ix_browser_sessions_issuer_subject", "browser_sessions", ["issuer", "subject"], unique=False)
    op.create_index("ix_browser_sessions_expires_at", "browser_sessions", ["expires_at"], unique=False)


def downgrade() -> None:
    """Take back."""
    op.drop_table("browser_sessions")
