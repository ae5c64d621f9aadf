"""The first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
        sa.UniqueConstraint("digest", name="uq_api_keys_digest"),
    )
    op.create_table(
        "files",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("purpose", sa.String(length=64), nullable=False),
        sa.Column("media_type", sa.String(length=255), nullable=True),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_files"),
    )
    op.create_index("ix_files_tenant_created_us", "files", ["tenant", "created_us"], unique=False)
    op.create_table(
        "vector_stores",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("metadata", sa.JSON(), nullable=False),
        sa.Column("expires_days", sa.Integer(), nullable=True),
        sa.Column("last_active_at", sa.BigInteger(), nullable=False),
        sa.Column("embedder", sa.String(length=255), nullable=True),
        sa.Column("fingerprint", sa.String(length=255), nullable=True),
        sa.Column("dimensions", sa.Integer(), nullable=True),
        sa.Column("removing", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_vector_stores"),
    )
    op.create_index("ix_vector_stores_tenant_created_us", "vector_stores", ["tenant", "created_us"], unique=False)
    op.create_table(
        "file_batches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("file_ids", sa.JSON(), nullable=False),
        sa.Column("cancelled", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id"], ["vector_stores.id"], name="fk_file_batches_store_id_vector_stores", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_file_batches"),
    )
    op.create_index("ix_file_batches_store_id", "file_batches", ["store_id"], unique=False)
    op.create_table(
        "vector_store_files",
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("error_code", sa.String(length=32), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("attributes", sa.JSON(), nullable=False),
        sa.Column("chunk_size", sa.Integer(), nullable=False),
        sa.Column("chunk_overlap", sa.Integer(), nullable=False),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.Column("usage_bytes", sa.BigInteger(), nullable=False),
        sa.Column("notes", sa.JSON(), nullable=False),
        sa.Column("removing", sa.Boolean(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name="fk_vector_store_files_file_id_files"),
        sa.ForeignKeyConstraint(
            ["store_id"], ["vector_stores.id"], name="fk_vector_store_files_store_id_vector_stores", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("store_id", "file_id", name="pk_vector_store_files"),
    )
    op.create_index("ix_vector_store_files_file_id", "vector_store_files", ["file_id"], unique=False)
    op.create_index(
        "ix_vector_store_files_store_id_created_us", "vector_store_files", ["store_id", "created_us"], unique=False
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("store_id", sa.String(length=64), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("not_before", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("lease_expires", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["store_id", "file_id"],
            ["vector_store_files.store_id", "vector_store_files.file_id"],
            name="fk_jobs_store_id_file_id_vector_store_files",
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("store_id", "file_id", name="uq_jobs_store_id_file_id"),
    )
    op.create_index("ix_jobs_not_before_attempts", "jobs", ["not_before", "attempts"], unique=False)


def downgrade() -> None:
    """Take back."""
    op.drop_index("ix_jobs_not_before_attempts", table_name="jobs")
    op.drop_table("jobs")
    op.drop_index("ix_vector_store_files_store_id_created_us", table_name="vector_store_files")
    op.drop_index("ix_vector_store_files_file_id", table_name="vector_store_files")
    op.drop_table("vector_store_files")
    op.drop_index("ix_file_batches_store_id", table_name="file_batches")
    op.drop_table("file_batches")
    op.drop_index("ix_vector_stores_tenant_created_us", table_name="vector_stores")
    op.drop_table("vector_stores")
    op.drop_index("ix_files_tenant_created_us", table_name="files")
    op.drop_table("files")
    op.drop_table("api_keys")
