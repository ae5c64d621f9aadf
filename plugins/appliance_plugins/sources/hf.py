"""``hf:ORG/NAME@REVISION``: model files from the Hugging Face Hub, or a mirror named by HF_ENDPOINT.

The token comes from HF_TOKEN or ``hf auth login``. ``hf:ORG/NAME/FILE.gguf@REVISION`` takes one GGUF file of
many. Needs ``pip install 'rag-appliance[hf]'``.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

from appliance.plugin import Progress, StartError
from appliance_plugins.sources import files
from appliance_plugins.sources.unpack import Unpacker

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REFERENCE = re.compile(rf"({_NAME}/{_NAME})(?:/([^@]+\.gguf))?(?:@([A-Za-z0-9][A-Za-z0-9._/-]*))?")
_COPIES = ("original/", "consolidated")
"""Second copies of the weights in formats that only their makers' code reads."""
_POLL_SECONDS = 0.5


class _Reference(NamedTuple):
    repository: str
    file: str | None
    revision: str


class HfSource:
    """Pulls models from the hub. An interrupted pull keeps the files that were complete."""

    def __init__(self, unpacker: Unpacker) -> None:
        self._unpacker = unpacker

    def pull(self, reference: str, folder: Path, progress: Progress) -> None:
        """Download a revision's data files into ``folder`` and check their sizes and hashes.

        Raises:
            StartError: the model cannot be had or comes damaged, with the fix.
        """
        wanted = _parse(reference)
        self._unpacker.undo(folder)
        with _explained(reference, wanted):
            _download(wanted, folder, progress)
        _flatten(folder, wanted)
        self._unpacker.unpack_inside(folder, progress)


def _parse(reference: str) -> _Reference:
    match = _REFERENCE.fullmatch(reference)
    if not match:
        raise StartError(f"hf:{reference} is no model of the hub; write hf:ORG/NAME or hf:ORG/NAME@REVISION")
    return _Reference(match[1], match[2], match[3] or "main")


@contextlib.contextmanager
def _explained(reference: str, wanted: _Reference) -> Iterator[None]:
    """Turn the hub's errors into one line with the fix. A full disk passes as it is."""
    try:
        import huggingface_hub.errors as hub
    except ImportError:
        raise StartError(
            "hf: sources need the Python package huggingface_hub; run pip install 'rag-appliance[hf]'"
        ) from None
    try:
        yield
    except StartError:
        raise
    except hub.GatedRepoError:
        fix = f"accept its terms at https://huggingface.co/{wanted.repository} and set HF_TOKEN"
        raise StartError(f"hf:{reference} is gated; {fix}") from None
    except hub.RepositoryNotFoundError:
        raise StartError(
            f"hf:{reference}: the hub has no such model, or it is private; check the name or set HF_TOKEN"
        ) from None
    except (hub.RevisionNotFoundError, hub.EntryNotFoundError):
        raise StartError(f"hf:{reference}: the model has no such revision or file; check both on the hub") from None
    except hub.OfflineModeIsEnabled:
        raise StartError(f"hf:{reference} is not here and HF_HUB_OFFLINE is set; unset it to pull") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise StartError(
            f"hf:{reference}: the hub failed ({type(error).__name__}); check the network, HF_ENDPOINT and proxies"
        ) from error


def _download(wanted: _Reference, folder: Path, progress: Progress) -> None:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    progress(0, None, f"asking for {wanted.repository}")
    info = HfApi().model_info(wanted.repository, revision=wanted.revision, files_metadata=True)
    chosen = _choose(wanted, list(info.siblings or []))
    total = sum(file.size or 0 for file in chosen)
    _drop_torn(folder)
    progress(0, total, f"downloading {wanted.repository}")
    files.require_space(folder, total - files.size(folder))
    with _watched(folder, total, f"downloading {wanted.repository}", progress):
        for file in chosen:
            # One commit for all files, even when the branch moves meanwhile.
            hf_hub_download(wanted.repository, file.rfilename, revision=info.sha, local_dir=folder)
    for file in chosen:
        _check(folder, file)


def _drop_torn(folder: Path) -> None:
    """Delete what a killed pull left of single files; the hub's client never goes on with those."""
    for path in (folder / ".cache").rglob("*.incomplete"):
        path.unlink()


def _choose(wanted: _Reference, offered: list[RepoSibling]) -> list[RepoSibling]:
    """The model's data files: with safetensors no GGUF, and one GGUF file at most."""
    data = [file for file in offered if files.is_data(file.rfilename) and not file.rfilename.startswith(_COPIES)]
    if wanted.file:
        return [file for file in data if not _is_weights(file) or file.rfilename == wanted.file]
    tensors = [file for file in data if not file.rfilename.endswith((".gguf", ".onnx"))]
    if any(_is_weights(file) for file in tensors):
        return tensors
    ggufs = [file.rfilename for file in data if file.rfilename.endswith(".gguf")]
    if len(ggufs) > 1:
        raise StartError(
            f"hf:{wanted.repository} has several GGUF files; name one, as in hf:{wanted.repository}/{ggufs[0]}"
        )
    if not ggufs:
        raise StartError(
            f"hf:{wanted.repository} has no safetensors or GGUF weights (pickled .bin files are not loaded)"
        )
    return data


def _is_weights(file: RepoSibling) -> bool:
    return file.rfilename.endswith((".safetensors", ".gguf", ".onnx"))


def _check(folder: Path, file: RepoSibling) -> None:
    """Compare with the hub's size and, for large files, SHA-256."""
    path = folder / file.rfilename
    expected = file.lfs.sha256 if file.lfs else None
    if path.stat().st_size == (file.size or path.stat().st_size) and (expected is None or _sha256(path) == expected):
        return
    path.unlink()
    raise StartError(f"{file.rfilename} came damaged from the hub; pull again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _watched(folder: Path, total: int, what: str, progress: Progress) -> Iterator[None]:
    """Report the folder's size while the hub's client fills it."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_POLL_SECONDS):
            progress(min(files.size(folder), total), total, what)

    progress(min(files.size(folder), total), total, what)
    thread = threading.Thread(target=watch, name="pull-progress", daemon=True)
    thread.start()
    try:
        yield
        progress(total, total, what)
    finally:
        over.set()
        thread.join()


def _flatten(folder: Path, wanted: _Reference) -> None:
    """Move a GGUF file that lies in a folder of the repository to the top, where it is looked for."""
    if wanted.file and "/" in wanted.file:
        (folder / wanted.file).rename(folder / PurePosixPath(wanted.file).name)
