"""Loads the model of one entry of ``models``; what embeds and what reranks load it alike.

The first start exports the model, in a process of its own (about 10 s); the result lies beside the weights under
their digest, so it is made once, whoever asks for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path

from appliance.plugin import ModelSpec, StartError, Strict
from appliance_retrieval.onnx_model import MODEL, OnnxModel, weights_digest

_log = logging.getLogger(__name__)


class OnnxOptions(Strict, frozen=True):
    """``options`` of the model."""

    threads: int | None = None
    """CPU threads; default half of the cores."""
    cache_dir: str | None = None
    """Where the exported model goes; default beside the weights."""
    export_timeout: float = 900.0
    """Seconds the export may take."""


async def load_model(spec: ModelSpec, options: OnnxOptions) -> tuple[OnnxModel, str]:
    """Export if need be, then load; the model and the digest of its weights. Raises StartError."""
    if spec.path is None:
        raise StartError(
            f"{spec.where}: the model is not here; run appliance models pull {spec.name} with the same --config"
        )
    source = Path(spec.path)
    digest = await asyncio.to_thread(weights_digest, source)
    target = Path(options.cache_dir or source.parent) / f"onnx-int8-{digest[:12]}"
    if not (target / MODEL).exists():
        await _export(spec, options, source, target)
    threads = options.threads or max(1, (os.cpu_count() or 2) // 2)
    return await asyncio.to_thread(_load, target, threads), digest


async def _export(spec: ModelSpec, options: OnnxOptions, source: Path, target: Path) -> None:
    _log.info("converting %s for the CPU (once, about 10 seconds)", spec.name)
    command = [sys.executable, "-m", "appliance_retrieval.onnx_export", str(source), str(target)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE, env=environment
    )
    try:
        _, errors = await asyncio.wait_for(process.communicate(), options.export_timeout)
    except TimeoutError:
        raise StartError(f"{spec.where}: converting took too long; raise options.export_timeout") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        last = (errors.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise StartError(
            f"{spec.where}: {source} cannot be converted: {last};"
            " if a package is missing, install rag-appliance[onnx-export]"
        )


def _load(folder: Path, threads: int) -> OnnxModel:
    try:
        return OnnxModel(folder, threads)
    except ImportError as error:
        raise StartError(f"{error.name} is missing; install rag-appliance[onnx]") from error
