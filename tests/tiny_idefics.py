"""A model that sees, in miniature: Idefics3 with random weights and the tokenizer of the real SmolLM2.

Nobody trained it, so its answers say nothing. But a picture takes the whole way into them: it is decoded, cut into
patches, and stands among the tokens of the prompt, so that another picture gets another answer.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from smollm2 import smollm2_folder

OPTIONS = {"max_model_len": 512, "max_num_seqs": 4, "cpu_kv_cache_gib": 1, "dtype": "float32"}
PICTURE_TOKENS = 16 + 4
"""Of a picture in a prompt: one for 2 by 2 patches, and the marks around them."""
_SIDE, _PATCH, _SCALE = 128, 16, 2
_IMAGE = "<image>"
_MARKS = ("<fake_token_around_image>", _IMAGE, "<end_of_utterance>", "<global-img>")
_SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
_RANDOM = {"initializer_range": 0.3}
"""Far more than where training begins: the answers are to differ."""
_WEIGHTS = """
import sys, torch
from transformers import AutoConfig, Idefics3ForConditionalGeneration

torch.manual_seed(0)
Idefics3ForConditionalGeneration(AutoConfig.from_pretrained(sys.argv[1])).save_pretrained(sys.argv[1])
"""


def tiny_idefics(folder: Path) -> Path:
    """Write the model into a new folder; returns it."""
    folder.mkdir()
    marks = _write_tokenizer(smollm2_folder(), folder)
    vision = {**_SIZES, **_RANDOM, "image_size": _SIDE, "patch_size": _PATCH}
    text = {**_SIZES, **_RANDOM, "model_type": "llama", "vocab_size": max(marks.values()) + 1}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config = {
        **_RANDOM,
        "model_type": "idefics3",
        "dtype": "float32",
        "image_token_id": marks[_IMAGE],
        "pad_token_id": 2,
        "scale_factor": _SCALE,
        "vision_config": vision,
        "text_config": text | ends,
    }
    pictures = {
        "image_processor_type": "Idefics3ImageProcessorPil",  # the other one needs torchvision
        "do_image_splitting": False,
        "size": {"longest_edge": _SIDE},
        "max_image_size": {"longest_edge": _SIDE},
    }
    length = (_SIDE // _PATCH // _SCALE) ** 2
    processor = {"processor_class": "Idefics3Processor", "image_seq_len": length, "image_processor": pictures}
    _write(folder / "config.json", config)
    _write(folder / "processor_config.json", processor)
    # In a process of its own: torch is large, and takes seconds to load.
    subprocess.run([sys.executable, "-c", _WEIGHTS, str(folder)], check=True, capture_output=True, timeout=120)
    return folder


def _write_tokenizer(source: Path, folder: Path) -> dict[str, int]:
    """Copy it with more tokens, for what stands around a picture and in its place; returns their ids."""
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    marks = {mark: number for number, mark in enumerate(_MARKS, len(tokenizer["model"]["vocab"]))}
    usual = tokenizer["added_tokens"][0]
    tokenizer["added_tokens"] += [{**usual, "content": mark, "id": number} for mark, number in marks.items()]
    _write(folder / "tokenizer.json", tokenizer)
    return marks


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content))
