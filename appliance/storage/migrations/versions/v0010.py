"""Who may see a file in a vector store."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Everything that is there may be seen by everybody of its tenant, as before."""
    _add_flag("files", "restricted", sa.false())
    _add_flag("vector_store_files", "stale", sa.false())
    _add_flag("vector_store_files", "public", sa.true())
    op.create_index("ix_vector_store_files_store_id_public", "vector_store_files", ["store_id", "public"], unique=False)
    op.create_table(
        "file_readers",
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("reader", sa.String(length=1024), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id", "file_id"],
            ["vector_store_files.store_id", "vector_store_files.file_id"],
            name="fk_file_readers_store_id_file_id_vector_store_files",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("store_id", "file_id", "reader", name="pk_file_readers"),
    )
    op.create_index("ix_file_readers_file_id_reader", "file_readers", ["file_id", "reader"], unique=False)


def _add_flag(table: str, name: str, value: sa.ColumnElement[bool]) -> None:
    """With a default for the rows that are there; the table is not made anew, which would take what hangs on it."""
    op.add_column(table, sa.Column(name, sa.Boolean(), nullable=False, server_default=value))


def downgrade() -> None:
    """Take back; then everybody of a tenant sees all of its documents again."""
    op.drop_table("file_readers")
    op.drop_index("ix_vector_store_files_store_id_public", table_name="vector_store_files")
    op.drop_column("vector_store_files", "public")
    op.drop_column("vector_store_files", "stale")
    op.drop_column("files", "restricted")
