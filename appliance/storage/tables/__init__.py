"""The tables, a module for each subject. Importing this package makes all of them known to ``Base.metadata``."""

from __future__ import annotations

from appliance.storage.tables import (
    audit,
    batches,
    completions,
    idempotency,
    responses,
    sessions,
    sources,
    uploads,
    usage,
)
from appliance.storage.tables.base import Base, Tenanted
from appliance.storage.tables.documents import (
    File,
    FileBatch,
    FileReader,
    Job,
    RebuiltFile,
    Reindex,
    StoreFile,
    VectorStore,
)
from appliance.storage.tables.keys import ApiKey

__all__ = [
    "ApiKey",
    "Base",
    "File",
    "FileBatch",
    "FileReader",
    "Job",
    "RebuiltFile",
    "Reindex",
    "StoreFile",
    "Tenanted",
    "VectorStore",
    "audit",
    "batches",
    "completions",
    "idempotency",
    "responses",
    "sessions",
    "sources",
    "uploads",
    "usage",
]
