"""A second collection of a vector store, to change what embeds it."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply. Every store is searched in its first collection, as before."""
    for name, type_, value in _COLUMNS:
        op.add_column("vector_stores", sa.Column(name, type_, nullable=False, server_default=value))
    op.create_table(
        "reindexes",
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("embedder", sa.String(length=255), nullable=False),
        sa.Column("fingerprint", sa.String(length=255), nullable=False),
        sa.Column("dimensions", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("skip_failed", sa.Boolean(), nullable=False),
        sa.Column("keep_seconds", sa.BigInteger(), nullable=False),
        sa.Column("kept_until", sa.BigInteger(), nullable=True),
        sa.Column("started_us", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id"], ["vector_stores.id"], name="fk_reindexes_store_id_vector_stores", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("store_id", name="pk_reindexes"),
    )
    op.create_table(
        "rebuilt_files",
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.Boolean(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("usage_bytes", sa.BigInteger(), nullable=False),
        sa.Column("error_code", sa.String(length=32), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id", "file_id"],
            ["vector_store_files.store_id", "vector_store_files.file_id"],
            name="fk_rebuilt_files_store_id_file_id_vector_store_files",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("store_id", "file_id", "generation", name="pk_rebuilt_files"),
    )


_COLUMNS = (
    ("metric", sa.String(length=16), "cosine"),
    ("generation", sa.Integer(), "0"),
    ("generations", sa.Integer(), "0"),
)


def downgrade() -> None:
    """Take back. A store that was switched is then searched in a collection that is not there: go back before."""
    op.drop_table("rebuilt_files")
    op.drop_table("reindexes")
    for name, _, _ in reversed(_COLUMNS):
        op.drop_column("vector_stores", name)
