"""Turn a sentence-transformers folder into an int8 ONNX model.

    python -m appliance_retrieval.onnx_export SOURCE TARGET

Runs in a process of its own, since it needs torch and transformers and the embedder does not. The target folder
appears whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

MODEL = "model.onnx"
COPIED = ("tokenizer.json", "modules.json", "sentence_bert_config.json", "config.json")


def export(source: Path, target: Path) -> None:
    """Write ``target`` with ``model.onnx`` (int8 weights; output: token vectors) and what the embedder reads."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{target.name}.part-", dir=target.parent))
    try:
        _export_float(source, work / "float.onnx")
        _quantise(work / "float.onnx", work / MODEL)
        for leftover in work.glob("float.onnx*"):
            leftover.unlink()
        _copy_settings(source, work)
        work.chmod(0o755)
        _publish(work, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _publish(work: Path, target: Path) -> None:
    try:
        work.rename(target)
    except OSError:  # another process was faster; its result is the same
        if not (target / MODEL).exists():
            raise


def _copy_settings(source: Path, work: Path) -> None:
    for name in COPIED:
        if (source / name).exists():
            shutil.copyfile(source / name, work / name)
    for pooling in source.glob("*Pooling/config.json"):
        (work / pooling.parent.name).mkdir()
        shutil.copyfile(pooling, work / pooling.parent.name / "config.json")


def _export_float(source: Path, path: Path) -> None:
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(
        source, local_files_only=True, use_safetensors=True, dtype=torch.float32, attn_implementation="eager"
    )
    names = _input_names(model)
    example = torch.ones((2, 16), dtype=torch.int64)
    axes = {0: "batch", 1: "tokens"}
    torch.onnx.export(
        _token_vectors(model.eval(), names),
        tuple(example for _ in names),
        str(path),
        input_names=names,
        output_names=["token_vectors"],
        dynamic_axes=dict.fromkeys([*names, "token_vectors"], axes),
        opset_version=17,
        dynamo=False,
    )


def _input_names(model: Any) -> list[str]:
    typed = getattr(model.config, "type_vocab_size", 0) > 1
    return ["input_ids", "attention_mask", *(["token_type_ids"] if typed else [])]


def _token_vectors(model: Any, names: list[str]) -> Any:
    """The model as a torch module with positional inputs and one output: (batch, tokens, dimensions)."""
    import torch

    class TokenVectors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: Any) -> Any:
            return self.model(**dict(zip(names, inputs, strict=True))).last_hidden_state

    return TokenVectors()


def _quantise(source: Path, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, target, weight_type=QuantType.QInt8, per_channel=True)


def main() -> None:
    """Command line: source folder, target folder."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    source, target = (Path(argument) for argument in sys.argv[1:3])
    export(source, target)


if __name__ == "__main__":
    main()
