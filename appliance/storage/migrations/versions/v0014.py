"""Which chunker a file was attached with, and how far its ingestion is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Files that are there are cut by the configured chunker, should they be indexed again."""
    op.add_column("vector_store_files", sa.Column("chunker", sa.String(length=64), nullable=True))
    op.add_column("jobs", sa.Column("stage", sa.String(length=16), nullable=True))
    for name, type_ in (("percent", sa.Integer()), ("pages", sa.Integer()), ("begun", sa.BigInteger())):
        op.add_column("jobs", sa.Column(name, type_, nullable=False, server_default="0"))


def downgrade() -> None:
    """Take back."""
    for name in ("begun", "pages", "percent", "stage"):
        op.drop_column("jobs", name)
    op.drop_column("vector_store_files", "chunker")
