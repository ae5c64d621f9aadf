"""API keys: roles, stores, allowance, rotation."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NEW: dict[str, sa.types.TypeEngine[Any]] = {
    "user_id": sa.String(length=255),
    "roles": sa.JSON(),
    "stores": sa.JSON(none_as_null=True),
    "allowance": sa.JSON(none_as_null=True),
    "rotations": sa.Integer(),
    "rotated_at": sa.BigInteger(),
    "previous_digest": sa.String(length=64),
    "previous_until": sa.BigInteger(),
}
_KEYS = sa.table(
    "api_keys",
    sa.column("id", sa.String()),
    sa.column("scopes", sa.JSON()),
    sa.column("roles", sa.JSON()),
    sa.column("rotations", sa.Integer()),
)
_ROLE_OF_SCOPE = {"*": "admin", "admin": "operator", "metrics": "operator", "files": "knowledge-manager"}
"""Scopes were all there was; the role that leaves a key what its scopes allowed, which go on limiting it."""


def upgrade() -> None:
    """Apply."""
    with op.batch_alter_table("api_keys") as batch:
        for name, type_ in _NEW.items():
            batch.add_column(sa.Column(name, type_, nullable=True))
    connection = op.get_bind()
    for key_id, scopes in connection.execute(sa.select(_KEYS.c.id, _KEYS.c.scopes)).all():
        roles = sorted({_ROLE_OF_SCOPE.get(scope, "user") for scope in scopes}) or ["user"]
        connection.execute(sa.update(_KEYS).where(_KEYS.c.id == key_id).values(roles=roles, rotations=0))
    with op.batch_alter_table("api_keys") as batch:
        batch.alter_column("roles", existing_type=sa.JSON(), nullable=False)
        batch.alter_column("rotations", existing_type=sa.Integer(), nullable=False)


def downgrade() -> None:
    """Take back. A key that was rotated keeps its newest secret."""
    with op.batch_alter_table("api_keys") as batch:
        for name in _NEW:
            batch.drop_column(name)
