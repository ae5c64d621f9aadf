"""Document sources. What earlier versions copied from ``retrieval.stores`` becomes theirs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

# Two files of one name are an old and a new version, at whose change the server was killed; the next sync ends it.
_ADOPT = """
INSERT INTO source_files (source, "key", version, sha256, settings, file_id, next_id, tenant)
SELECT 'stores/' || s.tenant || '/' || s.name, f.filename, '',
       CASE WHEN COUNT(*) = 1 THEN MAX(f.sha256) ELSE '' END, '',
       MIN(f.id), CASE WHEN COUNT(*) > 1 THEN MAX(f.id) END, f.tenant
FROM files f
JOIN vector_store_files m ON m.file_id = f.id
JOIN vector_stores s ON s.id = m.store_id
WHERE f.purpose = 'configuration'
GROUP BY s.tenant, s.name, f.filename, f.tenant
"""


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "document_sources",
        sa.Column("name", sa.String(length=600), nullable=False),
        sa.Column("store_id", sa.String(length=64), nullable=True),
        sa.Column("tried_us", sa.BigInteger(), nullable=False),
        sa.Column("synced_us", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_document_sources"),
    )
    op.create_table(
        "source_files",
        sa.Column("source", sa.String(length=600), nullable=False),
        sa.Column("key", sa.String(length=1024), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("settings", sa.String(length=64), nullable=False),
        sa.Column("file_id", sa.String(length=64), nullable=True),
        sa.Column("next_id", sa.String(length=64), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name="fk_source_files_file_id_files", ondelete="SET NULL"),
        sa.ForeignKeyConstraint(["next_id"], ["files.id"], name="fk_source_files_next_id_files", ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("source", "key", name="pk_source_files"),
    )
    op.create_index("ix_source_files_file_id", "source_files", ["file_id"], unique=False)
    op.create_index("ix_source_files_next_id", "source_files", ["next_id"], unique=False)
    op.execute(sa.text(_ADOPT))


def downgrade() -> None:
    """Take back; the files stay in their stores."""
    op.drop_table("source_files")
    op.drop_table("document_sources")
