"""Opens pictures, and refuses those that unpack to too much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.plugin import InvalidFile

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 100_000_000
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")


@contextmanager
def opened(path: Path) -> Iterator[tuple[Iterator[Image], int]]:
    """The pictures of a file, one after the other, in shades of grey and upright, and how many there are.

    One is unpacked when it is asked for, and only it is in memory: a scan of 50 pages can be gigabytes.

    Raises:
        InvalidFile: damaged, or one has more than 100 million pixels; also while they are taken.
    """
    from PIL import Image, ImageSequence

    Image.MAX_IMAGE_PIXELS = None  # the check below comes before anything is unpacked
    with _translated():
        file = Image.open(path, formats=_FORMATS)
    with file:
        with _translated():
            count = getattr(file, "n_frames", 1)
        yield iter(partial(_next, ImageSequence.Iterator(file)), None), count


def _next(frames: Iterator[Image]) -> Image | None:
    from PIL import ImageOps

    with _translated():
        if (frame := next(frames, None)) is None:
            return None
        _check(*frame.size)
        upright = ImageOps.exif_transpose(frame).convert("L")
        upright.info = dict(frame.info)
        return upright


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (InvalidFile, MemoryError):
        raise
    except Exception as error:  # Pillow's errors have no common base
        raise InvalidFile(f"the picture is damaged ({type(error).__name__}); save it again and upload it") from error


def _check(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidFile(f"the picture has {width} x {height} pixels, over the limit of {MAX_PIXELS}; make it smaller")
