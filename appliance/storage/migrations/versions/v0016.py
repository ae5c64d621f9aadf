"""How many chunks a tenant keeps is read from an index alone."""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
_NAME = "ix_vector_store_files_tenant_chunks"


def upgrade() -> None:
    """Apply."""
    op.create_index(_NAME, "vector_store_files", ["tenant", "chunks"], unique=False)


def downgrade() -> None:
    """Take back."""
    op.drop_index(_NAME, table_name="vector_store_files")
