"""Which vector store of the configuration holds a store's vectors."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Of stores that have vectors already, the next worker says that its own vector store holds them."""
    op.add_column("vector_stores", sa.Column("backend", sa.String(length=64), nullable=True))


def downgrade() -> None:
    """Take back."""
    op.drop_column("vector_stores", "backend")
