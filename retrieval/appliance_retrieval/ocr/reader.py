"""Tesseract, in this process: no program is started and nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.plugin import StartError

if TYPE_CHECKING:
    from PIL.Image import Image
    from pypdfium2 import PdfPage

MAX_PIXELS = 40_000_000
"""Larger pages are drawn with fewer dots."""
_POINTS = 72
_FOLDERS = ("/usr/share/tesseract-ocr/*/tessdata", "/usr/share/tessdata", "/usr/share/tesseract/tessdata")


class Reader:
    """Reads pictures in some languages. Loads the languages at the first use, or by ``load``."""

    def __init__(self, languages: Sequence[str], folder: Path, dpi: int) -> None:
        self._languages, self._folder, self._dpi = languages, folder, dpi
        self._tesseract: Any = None

    def load(self) -> Any:
        """Load the languages, once."""
        if self._tesseract is None:
            import tesserocr

            self._tesseract = tesserocr.PyTessBaseAPI(path=str(self._folder), lang="+".join(self._languages))
        return self._tesseract

    def page(self, page: PdfPage) -> str:
        """The text on a page of a PDF."""
        width, height = page.get_size()
        scale = min(self._dpi / _POINTS, sqrt(MAX_PIXELS / max(width * height, 1)))
        draw: Any = page.render  # its types say that scale is whole
        bitmap = draw(scale=scale, grayscale=True)
        return self._read(bitmap.to_pil(), round(scale * _POINTS))

    def picture(self, picture: Image) -> str:
        """The text on a picture. What it says of its resolution counts, where that can be."""
        given = picture.info.get("dpi", (0, 0))[0]
        return self._read(picture, int(given) if 70 <= given <= 2400 else self._dpi)

    def _read(self, picture: Image, dpi: int) -> str:
        tesseract = self.load()
        tesseract.SetImage(picture)
        tesseract.SetSourceResolution(dpi)
        text: str = tesseract.GetUTF8Text()
        tesseract.Clear()
        return text.strip()


def find_languages(languages: Sequence[str], given: str | None) -> Path:
    """The folder that holds all of the languages.

    Raises:
        StartError: Tesseract's library or a language is missing.
    """
    try:
        import tesserocr  # noqa: F401
    except ImportError as error:
        raise StartError("the plugin tesseract needs tesserocr; pip install 'rag-appliance[tesseract]'") from error
    folders = [Path(given)] if given else [found for folder in _FOLDERS for found in sorted(Path("/").glob(folder[1:]))]
    for folder in folders:
        if all((folder / f"{language}.traineddata").is_file() for language in languages):
            return folder
    packages = " ".join(f"tesseract-ocr-{language.replace('_', '-').lower()}" for language in languages)
    where = f"in {given}, as plugin.tesseract.data says" if given else f"; on Debian: apt-get install {packages}"
    raise StartError(f"plugin.tesseract.languages: the data of {', '.join(languages)} is not there{where}")
