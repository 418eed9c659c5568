"""The tiny checkpoints whose logits are recorded, and the text they are given."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from tensorsharp.testing.tinygguf import Tiny, tiny, write_tiny
from tensorsharp.weights.gguf import open_gguf

TINY_IDS: list[int] = np.random.default_rng(7).integers(2, 64, 96).tolist()
"""Longer than every window, than three blocks of 32 less one row, and than YaRN's original context of 64."""

TINIES: dict[str, Tiny] = {
    "tiny-llama": tiny("llama"),
    "tiny-llama-factors": tiny("llama", tied=True, rope_freqs=True, kv_heads=1, seed=1),
    "tiny-llama-experts": tiny("llama", experts=5, seed=3),
    "tiny-mistral3": tiny("mistral3"),
    "tiny-qwen2": tiny("qwen2"),
    "tiny-qwen3": tiny("qwen3"),
    "tiny-smollm3": tiny("smollm3"),
    "tiny-gemma3": tiny("gemma3"),
    "tiny-gemma3-relu": tiny("gemma3", seed=2),
}
EMBEDDINGS: dict[str, Tiny] = {
    f"tiny-qwen3-{name}": tiny("qwen3", pooling=number, seed=number) for name, number in (("mean", 1), ("last", 3))
}
"""Those that give a vector for a text. llama.cpp pools the first row only of encoders."""
STEEP = "tiny-gemma3-relu"
"""Gates times 2^20, up projections divided by it: GELU is then ReLU nearly everywhere, and llama.cpp's table of it in
half precision (https://github.com/ggml-org/llama.cpp, ggml-cpu/vec.h) no longer hides what the rest of the graph does."""
_STEEPNESS = np.float32(2**20)


def write(name: str, folder: Path) -> Path:
    """Write the checkpoint into `folder`; the same bytes every time."""
    path = write_tiny(folder / f"{name}.gguf", (TINIES | EMBEDDINGS)[name])
    if name == STEEP:
        _steepen(path)
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _steepen(path: Path) -> None:
    with open_gguf(path) as file:
        found = list(file.tensors.values())
    data = np.memmap(path, np.uint8, "r+")
    for info in found:
        scale = {"ffn_gate": _STEEPNESS, "ffn_up": 1 / _STEEPNESS}.get(info.name.split(".")[-2])
        if scale is not None:
            data[info.offset : info.offset + info.nbytes].view(np.float32)[:] *= scale
    data.flush()
