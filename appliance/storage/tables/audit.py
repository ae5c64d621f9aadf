"""The audit log, its newest link, and how far it was exported.

The database itself keeps the log append-only: triggers refuse to change or delete an entry, but for those that
``audit_head.pruned_seq`` gives up. Migration v0003 makes the same triggers.
"""

from __future__ import annotations

from sqlalchemy import DDL, BigInteger, Index, Integer, String, Table, Text, event
from sqlalchemy.orm import Mapped, mapped_column

from appliance.storage.tables.base import Base, Tenanted

GENESIS = "0" * 64
"""What the first entry of all follows."""


class AuditRow(Tenanted, Base):
    """One entry. ``previous`` and ``hash`` are hex SHA-256, ``details`` is JSON text."""

    __tablename__ = "audit_log"
    __table_args__ = (Index(None, "tenant", "seq"), Index(None, "action", "seq"), Index(None, "time_us"))

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    time_us: Mapped[int] = mapped_column(BigInteger)
    principal: Mapped[str] = mapped_column(Text)
    user: Mapped[str] = mapped_column(Text)
    action: Mapped[str] = mapped_column(String(64))
    outcome: Mapped[str] = mapped_column(String(16))
    object: Mapped[str] = mapped_column(Text)
    request_id: Mapped[str] = mapped_column(String(128))
    address: Mapped[str] = mapped_column(String(64))
    details: Mapped[str] = mapped_column(Text)
    previous: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


class AuditHead(Base):
    """The one row that appending locks: the newest entry, and the newest of those that were pruned."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    seq: Mapped[int] = mapped_column(BigInteger)
    hash: Mapped[str] = mapped_column(String(64))
    pruned_seq: Mapped[int] = mapped_column(BigInteger)
    pruned_hash: Mapped[str] = mapped_column(String(64))


class AuditExport(Base):
    """How far one exporter got. ``owner`` alone exports until ``lease_expires``, in seconds since 1970."""

    __tablename__ = "audit_exports"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger)
    owner: Mapped[str] = mapped_column(String(64))
    lease_expires: Mapped[int] = mapped_column(BigInteger)


_FIRST = f"INSERT INTO audit_head (id, seq, hash, pruned_seq, pruned_hash) VALUES (1, 0, '{GENESIS}', 0, '{GENESIS}')"  # noqa: S608
SQLITE_GUARDS = (
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
)
POSTGRESQL_GUARDS = (
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
)


def _after_create(table: object, statement: str, dialect: str | None = None) -> None:
    ddl = DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(table, "after_create", ddl.execute_if(dialect=dialect) if dialect else ddl)


assert isinstance(AuditRow.__table__, Table)  # noqa: S101 - tells the type checker
_after_create(AuditHead.__table__, _FIRST)
for _statement in SQLITE_GUARDS:
    _after_create(AuditRow.__table__, _statement, "sqlite")
for _statement in POSTGRESQL_GUARDS:
    _after_create(AuditRow.__table__, _statement, "postgresql")
