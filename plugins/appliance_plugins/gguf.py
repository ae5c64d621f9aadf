"""Unpacks a GGUF file to a folder of safetensors with its tokenizer and chat template.

    python -m appliance_plugins.gguf MODEL.gguf FOLDER

The folder appears when it is complete. Weights become bfloat16, so memory and disk need twice the parameter
count in bytes. Needs ``pip install 'rag-appliance[gguf]'``. Errors are one line, the last on standard error.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert what the arguments name; the exit code is 0, 1 on failure, 2 on wrong use."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if len(given) != 2:
        print("usage: python -m appliance_plugins.gguf MODEL.gguf FOLDER", file=sys.stderr)
        return 2
    try:
        convert(Path(given[0]), Path(given[1]))
    except ImportError as error:
        print(f"the Python package {error.name} is missing; run pip install 'rag-appliance[gguf]'", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - whoever started this process reads one line
        print(f"{type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    else:
        return 0
    return 1


def convert(source: Path, folder: Path) -> None:
    """Write ``folder`` in one step: model, tokenizer, chat template."""
    _check(source)
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _write(source.resolve(), partial)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check(source: Path) -> None:
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{source.name} is not a GGUF file")


def _write(source: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    print("reading the weights", flush=True)
    loaded: Any = AutoModelForCausalLM.from_pretrained(
        str(source.parent),
        gguf_file=source.name,
        quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
        dtype=torch.bfloat16,
        output_loading_info=True,
    )
    model, report = loaded
    if report["missing_keys"]:  # transformers would fill them with random numbers
        raise ValueError(f"{source.name} lacks weights, among them {min(report['missing_keys'])}")
    tokenizer = AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name)
    print("writing safetensors", flush=True)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))


if __name__ == "__main__":
    sys.exit(main())
