"""Opens pictures, and refuses those that unpack to too much."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.plugin import InvalidFile

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 100_000_000
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")


def pictures(path: Path, most: int) -> tuple[list[Image], int]:
    """Up to ``most`` pictures of a file, in shades of grey and upright, and how many more it has.

    Raises:
        InvalidFile: damaged, or one has more than 100 million pixels.
    """
    from PIL import Image, ImageOps, ImageSequence

    Image.MAX_IMAGE_PIXELS = None  # the check below comes before anything is unpacked
    try:
        with Image.open(path, formats=_FORMATS) as file:
            found = []
            for frame in islice(ImageSequence.Iterator(file), most):
                _check(*frame.size)
                upright = ImageOps.exif_transpose(frame).convert("L")
                upright.info = dict(frame.info)
                found.append(upright)
            return found, max(0, getattr(file, "n_frames", 1) - most)
    except (InvalidFile, MemoryError):
        raise
    except Exception as error:  # Pillow's errors have no common base
        raise InvalidFile(f"the picture is damaged ({type(error).__name__}); save it again and upload it") from error


def _check(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        raise InvalidFile(f"the picture has {width} x {height} pixels, over the limit of {MAX_PIXELS}; make it smaller")
