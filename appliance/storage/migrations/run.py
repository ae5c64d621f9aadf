"""Runs the migrations inside the caller's transaction."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from appliance.errors import StartError


def settings(connection: Connection) -> Config:
    """Alembic's settings for this package; no ini file."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection, revision: str = "head") -> None:
    """Bring the schema to a revision, the newest by default. Raises StartError when a newer appliance wrote it."""
    try:
        command.upgrade(settings(connection), revision)
    except CommandError as error:
        raise StartError(
            f"the database does not fit this version ({error}); install the version that wrote it"
        ) from error
