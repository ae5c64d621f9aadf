"""Backups: everything that cannot be made again, in one encrypted file.

``create`` writes one while the server runs, ``restore`` makes an appliance of it. ``contents`` says what is in it and
why, ``archive`` in which form, ``encryption`` how it is locked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from appliance.errors import ApplianceError

Show: TypeAlias = Callable[[str, int, int], None]
"""Told what is being done (``rows`` or ``files``), and how much of how much of it is done: rows, or bytes."""


class BackupError(ApplianceError):
    """A backup cannot be made or restored."""
