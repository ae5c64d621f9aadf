"""Files that expire, uploads in parts, batches, and answers kept for ``Idempotency-Key``."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Apply."""
    op.add_column("files", sa.Column("user", sa.String(length=512), nullable=True))
    op.add_column("files", sa.Column("expires_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_files_expires_at", "files", ["expires_at"], unique=False)
    _uploads()
    _batches()
    op.create_table(
        "idempotency_keys",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("lease_expires", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_created_at", "idempotency_keys", ["created_at"], unique=False)


def _uploads() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=512), nullable=True),
        sa.Column("filename", sa.String(length=255), nullable=False),
        sa.Column("media_type", sa.String(length=255), nullable=True),
        sa.Column("purpose", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("file_seconds", sa.BigInteger(), nullable=True),
        sa.Column("file_id", sa.String(length=64), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_uploads"),
    )
    op.create_index("ix_uploads_status_expires_at", "uploads", ["status", "expires_at"], unique=False)
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("upload_id", sa.String(length=64), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["upload_id"], ["uploads.id"], name="fk_upload_parts_upload_id_uploads", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_upload_parts"),
    )
    op.create_index("ix_upload_parts_upload_id", "upload_parts", ["upload_id"], unique=False)


def _batches() -> None:
    op.create_table(
        "batches",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user", sa.String(length=512), nullable=True),
        sa.Column("created_us", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("endpoint", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=255), nullable=True),
        sa.Column("input_file_id", sa.String(length=64), nullable=False),
        sa.Column("output_file_id", sa.String(length=64), nullable=True),
        sa.Column("error_file_id", sa.String(length=64), nullable=True),
        sa.Column("metadata", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("errors", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("times", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("output_seconds", sa.BigInteger(), nullable=True),
        sa.Column("total", sa.Integer(), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("reasoning_tokens", sa.BigInteger(), nullable=False),
        sa.Column("principal", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("owner", sa.String(length=64), nullable=True),
        sa.Column("lease_expires", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_batches"),
    )
    op.create_index("ix_batches_tenant_created_us", "batches", ["tenant", "created_us"], unique=False)
    op.create_index("ix_batches_status_lease_expires", "batches", ["status", "lease_expires"], unique=False)
    op.create_index("ix_batches_input_file_id", "batches", ["input_file_id"], unique=False)
    op.create_table(
        "batch_results",
        sa.Column("batch_id", sa.String(length=64), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("ok", sa.Boolean(), nullable=False),
        sa.Column("output", sa.LargeBinary(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name="fk_batch_results_batch_id_batches", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name="pk_batch_results"),
    )


def downgrade() -> None:
    """Take back."""
    op.drop_table("idempotency_keys")
    op.drop_table("batch_results")
    op.drop_table("batches")
    op.drop_table("upload_parts")
    op.drop_table("uploads")
    op.drop_index("ix_files_expires_at", "files")
    op.drop_column("files", "expires_at")
    op.drop_column("files", "user")
