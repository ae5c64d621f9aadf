"""Unpacks a model that comes as GGUF alone to safetensors, in a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from appliance.plugin import Progress, StartError
from appliance_plugins.sources import process

_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TQDM_DISABLE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
}


class Unpacker:
    """``enabled`` as the setting ``convert_gguf`` says; ``timeout`` in seconds."""

    def __init__(self, *, enabled: bool, timeout: float) -> None:
        self.enabled = enabled
        self._timeout = timeout

    def wanted(self, folder: Path) -> Path | None:
        """The GGUF file to unpack; ``None`` when there is nothing to do.

        Raises:
            StartError: several GGUF files, of which none can be preferred.
        """
        files = sorted(folder.glob("*.gguf"))
        if not self.enabled or not files or any(folder.glob("*.safetensors")):
            return None
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            raise StartError(
                f"several GGUF files are in one folder ({names}); name one, as in file:/folder/{files[0].name}"
            )
        return files[0]

    def undo(self, folder: Path) -> None:
        """Take back an ``unpack_inside`` that was interrupted, which may have left half a model."""
        kept = folder / "gguf"
        if not kept.is_dir():
            return
        for path in folder.glob("*.safetensors"):
            path.unlink()
        for path in kept.iterdir():
            path.rename(folder / path.name)
        kept.rmdir()

    def unpack_inside(self, folder: Path, progress: Progress) -> None:
        """Unpack the GGUF file of a pulled folder, if it has no safetensors; the file moves to ``gguf/``."""
        file = self.wanted(folder)
        if file is None:
            return
        kept = folder / "gguf"
        kept.mkdir(exist_ok=True)
        self.unpack(file.rename(kept / file.name), folder, progress)

    def unpack(self, file: Path, folder: Path, progress: Progress) -> None:
        """Write the model and tokenizer of a GGUF file as safetensors into ``folder``.

        Raises:
            StartError: the file cannot be unpacked, or not in time.
        """
        target = folder / ".unpacked"
        shutil.rmtree(target, ignore_errors=True)
        progress(0, None, f"unpacking {file.name}")
        result = process.run(
            "appliance_plugins.gguf",
            [str(file), str(target)],
            environment=_QUIET,
            tick=lambda line: progress(0, None, f"unpacking {file.name}: {line}") if line else None,
            timeout=self._timeout,
        )
        if result.code is None:
            raise StartError(
                f"{file.name} was not unpacked within {self._timeout:g} s; raise plugin.sources.convert_timeout"
            )
        if result.code or not target.is_dir():
            raise StartError(f"{file.name} cannot be unpacked: {_reason(result)}")
        for path in target.iterdir():
            path.replace(folder / path.name)
        target.rmdir()


def _reason(result: process.Result) -> str:
    if result.code == -9:
        return "it ran out of memory; use a smaller model or one that comes as safetensors"
    return result.last
