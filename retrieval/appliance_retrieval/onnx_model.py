"""A sentence-embedding model run by onnxruntime and tokenizers, without torch.

One window of text a run, never a batch: int8 models scale activations over all of a run, so in a batch a text's
vector depends on its neighbours (cosine 0.96 to the same text alone), and on CPU a batch is no faster.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from appliance.plugin import BadRequest, StartError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MODEL, WEIGHTS = "model.onnx", "model.safetensors"
_LONG_TOKEN, _PIECE = 64, 4


def weights_digest(folder: Path) -> str:
    """SHA-256 of the weights and the tokenizer. Raises StartError when one is missing."""
    digest = hashlib.sha256()
    for name in (WEIGHTS, "tokenizer.json"):
        if not (folder / name).is_file():
            raise StartError(f"{folder} holds no {name}; give a sentence-transformers folder with safetensors weights")
        with (folder / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


class OnnxModel:
    """Tokenizer, session and pooling of one exported folder. Methods block; several threads may call them at once."""

    def __init__(self, folder: Path, threads: int) -> None:
        import onnxruntime
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_cpu_mem_arena = False  # it keeps the largest run's memory for ever
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])
        self._inputs = [node.name for node in self._session.get_inputs()]
        self._prefix, self._suffix = self._special_ids()
        self._cls_pooling = _pools_first_token(folder)
        self.max_tokens = _max_tokens(folder)
        self.dimensions = int(self.encode([self.wrap([])])[0].shape[0])

    def _special_ids(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a text."""
        encoding = self._tokenizer.encode("a")
        inner = [i for i, special in enumerate(encoding.special_tokens_mask) if not special]
        return list(encoding.ids[: inner[0]]), list(encoding.ids[inner[-1] + 1 :])

    def wrap(self, ids: Sequence[int]) -> list[int]:
        """A window with the special tokens around it."""
        return [*self._prefix, *ids, *self._suffix]

    def token_ids(self, text: str) -> list[int]:
        """A text's tokens without special ones."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def token_words(self, text: str) -> list[str]:
        """For each of a text's tokens the word that it is a part of."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        places = [None if word is None else encoding.word_to_chars(word) for word in encoding.word_ids]
        return ["" if place is None else text[slice(*place)] for place in places]

    def checked_ids(self, ids: Sequence[int], param: str) -> list[int]:
        """Token ids from a client, without special tokens at the ends.

        Raises:
            BadRequest: the model lacks one of them.
        """
        size = self._tokenizer.get_vocab_size()
        if unknown := [token for token in ids if not 0 <= token < size]:
            raise BadRequest(
                f"{param} holds token {unknown[0]}, but the model knows 0 to {size - 1};"
                " send text, or tokens of this model's own tokenizer",
                param=param,
            )
        inner = list(ids)
        if self._prefix and inner[: len(self._prefix)] == self._prefix:
            inner = inner[len(self._prefix) :]
        if self._suffix and inner[-len(self._suffix) :] == self._suffix:
            inner = inner[: -len(self._suffix)]
        return inner

    def windows(self, ids: Sequence[int]) -> list[list[int]]:
        """Consecutive windows that the model can read at once; one empty window for no tokens."""
        step = self.max_tokens - len(self._prefix) - len(self._suffix)
        return [self.wrap(ids[start : start + step]) for start in range(0, max(len(ids), 1), step)]

    def encode(self, windows: Sequence[Sequence[int]]) -> list[NDArray[np.float32]]:
        """A unit vector for each window."""
        return [self._encode(window) for window in windows]

    def _encode(self, window: Sequence[int]) -> NDArray[np.float32]:
        tokens = self._token_vectors(window)
        return unit(tokens[0] if self._cls_pooling else tokens.mean(axis=0))

    def encode_tokens(self, window: Sequence[int]) -> NDArray[np.float32]:
        """A unit vector for each token of a window but the special ones, row after row; no rows for an empty window."""
        import numpy as np

        tokens = self._token_vectors(window)[len(self._prefix) : len(window) - len(self._suffix)]
        scaled: NDArray[np.float32] = tokens / np.maximum(np.linalg.norm(tokens, axis=1, keepdims=True), 1e-12)
        return scaled

    def _token_vectors(self, window: Sequence[int]) -> NDArray[np.float32]:
        import numpy as np

        ids = np.asarray([window], np.int64)
        values = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        outputs = self._session.run(None, {name: values[name] for name in self._inputs})
        rows: NDArray[np.float32] = np.asarray(outputs[0])[0]
        return rows

    def token_spans(self, text: str) -> list[tuple[int, int]]:
        """Character offsets of each token; a long word that is one unknown token counts as many of 4 characters."""
        offsets = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return [piece for span in offsets for piece in _pieces(*span)]


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    if end - start <= _LONG_TOKEN:
        yield (start, end)
    else:
        yield from pairwise([*range(start, end, _PIECE), end])


def unit(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scaled to length one."""
    import numpy as np

    scaled: NDArray[np.float32] = (vector / max(float(np.linalg.norm(vector)), 1e-12)).astype("<f4")
    return scaled


def combine(vectors: Sequence[NDArray[np.float32]], weights: Sequence[int]) -> NDArray[np.float32]:
    """The unit vector of a text from those of its windows, weighted by their tokens."""
    import numpy as np

    return vectors[0] if len(vectors) == 1 else unit(np.average(np.stack(vectors), axis=0, weights=weights))


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else {}


def _max_tokens(folder: Path) -> int:
    """What the model was trained to read: sentence-transformers' limit, else the number of positions."""
    limit = _read(folder / "sentence_bert_config.json").get("max_seq_length")
    return int(limit or _read(folder / "config.json").get("max_position_embeddings") or 512)


def _pools_first_token(folder: Path) -> bool:
    """True for CLS pooling, False for the mean. Raises StartError for other ways of pooling."""
    modules = _read(folder / "modules.json") or []
    path = next((module["path"] for module in modules if module["type"].endswith("Pooling")), None)
    pooling = _read(folder / path / "config.json") if path else {"pooling_mode_mean_tokens": True}
    chosen = {name for name, on in pooling.items() if name.startswith("pooling_mode_") and on is True}
    if chosen == {"pooling_mode_cls_token"}:
        return True
    if chosen != {"pooling_mode_mean_tokens"}:
        raise StartError(f"{folder}: pooling {sorted(chosen)} is not supported; use a model with mean or cls pooling")
    return False
