"""The audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_GENESIS = "0" * 64
_GUARDS = {
    "sqlite": (
        """
        CREATE TRIGGER audit_log_no_update BEFORE UPDATE ON audit_log
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END
        """,
        """
        CREATE TRIGGER audit_log_no_delete BEFORE DELETE ON audit_log
        WHEN OLD.seq > COALESCE((SELECT pruned_seq FROM audit_head), 0)
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END
        """,
        # INSERT OR REPLACE would delete without asking the trigger above.
        """
        CREATE TRIGGER audit_log_no_replace BEFORE INSERT ON audit_log
        WHEN NEW.seq <= COALESCE((SELECT seq FROM audit_head), 0)
        BEGIN SELECT RAISE(ABORT, 'audit_log is append-only'); END
        """,
    ),
    "postgresql": (
        """
        CREATE FUNCTION audit_log_append_only() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF TG_OP = 'DELETE' THEN
                IF OLD.seq <= COALESCE((SELECT pruned_seq FROM audit_head), 0) THEN RETURN OLD; END IF;
            END IF;
            RAISE EXCEPTION 'audit_log is append-only';
        END $$
        """,
        """
        CREATE TRIGGER audit_log_append_only BEFORE UPDATE OR DELETE ON audit_log
        FOR EACH ROW EXECUTE FUNCTION audit_log_append_only()
        """,
        """
        CREATE TRIGGER audit_log_no_truncate BEFORE TRUNCATE ON audit_log
        FOR EACH STATEMENT EXECUTE FUNCTION audit_log_append_only()
        """,
    ),
}


def upgrade() -> None:
    """Apply."""
    op.create_table(
        "audit_log",
        sa.Column("seq", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("time_us", sa.BigInteger(), nullable=False),
        sa.Column("tenant", sa.String(length=255), nullable=False),
        sa.Column("principal", sa.Text(), nullable=False),
        sa.Column("user", sa.Text(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("details", sa.Text(), nullable=False),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit_log"),
    )
    op.create_index("ix_audit_log_tenant_seq", "audit_log", ["tenant", "seq"], unique=False)
    op.create_index("ix_audit_log_action_seq", "audit_log", ["action", "seq"], unique=False)
    op.create_index("ix_audit_log_time_us", "audit_log", ["time_us"], unique=False)
    head = op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("pruned_seq", sa.BigInteger(), nullable=False),
        sa.Column("pruned_hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit_head"),
    )
    op.bulk_insert(head, [{"id": 1, "seq": 0, "hash": _GENESIS, "pruned_seq": 0, "pruned_hash": _GENESIS}])
    op.create_table(
        "audit_exports",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(length=64), nullable=False),
        sa.Column("lease_expires", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_audit_exports"),
    )
    for statement in _GUARDS.get(op.get_bind().dialect.name, ()):
        op.execute(statement)


def downgrade() -> None:
    """Take back."""
    op.drop_table("audit_exports")
    op.drop_table("audit_head")
    op.drop_index("ix_audit_log_time_us", table_name="audit_log")
    op.drop_index("ix_audit_log_action_seq", table_name="audit_log")
    op.drop_index("ix_audit_log_tenant_seq", table_name="audit_log")
    op.drop_table("audit_log")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_log_append_only()")
