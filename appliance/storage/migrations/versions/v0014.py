"""Which chunker a file was attached with."""

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


def downgrade() -> None:
    """Take back."""
    op.drop_column("vector_store_files", "chunker")
