"""What has to be on the disk before anybody is told."""

from __future__ import annotations

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Have it on the disk that a file of this folder was made, renamed or removed: its own ``fsync`` does not do that.

    Raises OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
