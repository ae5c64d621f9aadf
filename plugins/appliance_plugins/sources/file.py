"""``file:FOLDER`` or ``file:MODEL.gguf``: a model that is on this machine already."""

from __future__ import annotations

from pathlib import Path

from appliance.plugin import Progress, StartError
from appliance_plugins.sources.unpack import Unpacker


class FileSource:
    """Uses folders where they lie. Only GGUF without safetensors is unpacked into the store."""

    def __init__(self, unpacker: Unpacker) -> None:
        self._unpacker = unpacker

    def locate(self, reference: str) -> Path | None:
        """The folder itself, or ``None`` when its GGUF file must be unpacked first.

        Raises:
            StartError: it is not there or holds no model.
        """
        path = Path(reference)
        if not path.exists():
            raise StartError(f"file:{reference} does not exist; correct the path or put the model there")
        return None if self._gguf(path) else path

    def pull(self, reference: str, folder: Path, progress: Progress) -> None:
        """Unpack the GGUF file into ``folder``. Raises StartError."""
        file = self._gguf(Path(reference))
        if file is None:
            raise StartError(f"file:{reference} is used where it lies and needs no pull")
        self._unpacker.unpack(file, folder, progress)

    def _gguf(self, path: Path) -> Path | None:
        """The file to unpack, if any; checks on the way that this is a model."""
        if path.is_file() and path.suffix == ".gguf":
            return path if self._unpacker.enabled else None
        if not path.is_dir():
            raise StartError(f"file:{path} is neither a folder nor a .gguf file; name the model's folder")
        if not any(path.glob("*.gguf")) and not (path / "config.json").is_file():
            raise StartError(f"file:{path} holds neither a config.json nor a .gguf file; name the folder that does")
        return self._unpacker.wanted(path)
