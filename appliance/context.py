"""What plugins get to work with: the configuration, folders, and the services of the running appliance."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.audit import Auditor, NoAudit
from appliance.config import Config
from appliance.front import Front
from appliance.gauges import Gauges
from appliance.secret import key_for

if TYPE_CHECKING:
    from appliance.storage.database import Database


@dataclass(frozen=True)
class AppContext:
    """Built once a process; passed to hooks that ask for ``context``."""

    config: Config
    database: Database
    audit: Auditor = field(default_factory=NoAudit)
    tenant: str | None = None
    """For vector stores: the one tenant whose vectors are to be kept; ``None`` for those of all."""
    gauges: Gauges = field(default_factory=Gauges)
    front: Front = field(default_factory=Front)
    """The app's routes, for plugins that speak another protocol than HTTP."""

    @property
    def data_dir(self) -> Path:
        """Where everything durable lies."""
        return self.config.data_path

    @property
    def log_dir(self) -> Path:
        """Where child processes write their logs; a replica has its own."""
        return self.data_dir / "logs" / (self.config.server.replica or "")

    @property
    def run_dir(self) -> Path:
        """Folder (0700) for unix sockets; a replica has its own."""
        return self.data_dir / "run" / (self.config.server.replica or "")

    def key_for(self, use: str) -> bytes:
        """32 secret bytes for one use, the same at every start; see ``appliance.secret``. Raises StartError."""
        return key_for(use, self.data_dir / "secret")
