"""Plugin ``disk_space``: ``/readyz`` says 503 while the disk under ``data_dir`` is nearly full or read-only.

    plugin:
      disk_space: {min_free_mib: 2048}

What a failing disk does to a request (a read-only file system, an I/O error) becomes 503 instead of an internal error.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from appliance.plugin import AppContext, HealthCheck, Strict, Unavailable, hookimpl

log = logging.getLogger(__name__)
_FAILING = (errno.EROFS, errno.EIO)


class DiskSpaceSettings(Strict, frozen=True):
    """What counts as nearly full."""

    min_free_mib: Annotated[int, msgspec.Meta(ge=1)] = 512
    """Mebibytes that must be free under ``data_dir``."""


@hookimpl
def appliance_settings() -> type[DiskSpaceSettings]:
    """``plugin.disk_space``."""
    return DiskSpaceSettings


@hookimpl
def appliance_health_checks(settings: DiskSpaceSettings, context: AppContext) -> Mapping[str, HealthCheck]:
    """``disk_space`` in the answer of ``/readyz``."""
    return {"disk_space": partial(check, context.data_dir, settings.min_free_mib)}


@hookimpl
def appliance_on_error(error: BaseException) -> Unavailable | None:
    """A disk that fails is no bug in the server, and may work again once it is mounted anew."""
    if not isinstance(error, OSError) or error.errno not in _FAILING:
        return None
    log.error("a disk fails: %s", error)
    return Unavailable("a disk of this server fails or is read-only; its log names the file", retry_after=60)


async def check(folder: Path, min_free_mib: int) -> str | None:
    """What is wrong with the disk, in one line; ``None`` if nothing is."""
    try:
        disk = await asyncio.to_thread(os.statvfs, folder)
    except OSError as error:
        return f"data_dir cannot be read: {error.strerror}; check the disk"
    if disk.f_flag & os.ST_RDONLY:
        return "the disk that holds data_dir is read-only; look at its health, then mount it again"
    free = disk.f_bavail * disk.f_frsize // 2**20
    if free < min_free_mib:
        return f"data_dir has {free} MiB left, plugin.disk_space.min_free_mib is {min_free_mib}; free some space"
    return None
