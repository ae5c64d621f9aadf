"""Names of places in which one tenant's vectors lie: a folder, a database, a schema, a namespace."""

from __future__ import annotations

import hashlib
import re


def place_of(tenant: str) -> str:
    """A tenant's name as the name of a place; no two tenants share one."""
    readable = re.sub(r"[^a-z0-9]+", "_", tenant.lower())[:32]
    return f"t_{readable}_{hashlib.sha256(tenant.encode()).hexdigest()[:16]}"
