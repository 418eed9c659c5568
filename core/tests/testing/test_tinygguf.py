"""Tiny checkpoints are real files: the same bytes each time, with the tensors and keys that were asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tensorsharp.errors import ConfigError, ModelError
from tensorsharp.testing.blocks import random_tensor
from tensorsharp.testing.tinygguf import ARCHITECTURES, tiny, write_tiny
from tensorsharp.testing.tinyvocab import byte_symbols, byte_vocabulary
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME
from tensorsharp.weights.gguf import open_gguf
from tensorsharp.weights.quants import dequantize

BLOCK_TYPES = [name for name, kind in GGML_TYPES_BY_NAME.items() if kind.block_size > 1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_checkpoint_is_a_file_of_its_architecture(architecture: str, tmp_path: Path) -> None:
    t = tiny(architecture)
    path = write_tiny(tmp_path / "a.gguf", t)
    assert path.read_bytes() == write_tiny(tmp_path / "b.gguf", t).read_bytes()
    assert path.read_bytes() != write_tiny(tmp_path / "c.gguf", replace(t, seed=1)).read_bytes()
    with open_gguf(path) as file:
        assert file.architecture == architecture
        assert file.metadata[f"{architecture}.block_count"] == t.layers
        assert file.tensors["token_embd.weight"].shape == (t.vocab_size, t.width)
        assert ("output.weight" in file.tensors) != t.tied
        assert all(np.isfinite(file.raw(name).view(np.float32)).all() for name in file.tensors)


@pytest.mark.parametrize("weight_type", ["F16", "BF16", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "IQ4_XS"])
def test_matrices_have_the_type_that_was_asked_for(weight_type: str, tmp_path: Path) -> None:
    with open_gguf(write_tiny(tmp_path / "a.gguf", tiny("llama", weight_type=weight_type))) as file:
        found = {name: info.type_name for name, info in file.tensors.items()}
        assert {kind for name, kind in found.items() if "norm" not in name} == {weight_type}
        assert {kind for name, kind in found.items() if "norm" in name} == {"F32"}
        info = file.tensors["blk.0.ffn_up.weight"]
        values = dequantize(file.raw(info.name), weight_type, info.shape)
    assert np.isfinite(values).all()
    size = float(np.sqrt(np.square(values, dtype=np.float64).mean())) * info.shape[1] ** 0.5
    assert 0.5 < size < 2.0  # every block is within a factor 2 of 1/sqrt(inputs)


@pytest.mark.parametrize("type_name", BLOCK_TYPES)
def test_random_blocks_exist_for_every_type(type_name: str) -> None:
    rng = np.random.default_rng(3)
    raw = random_tensor(type_name, (2, 3, 512), 0.1, rng)
    assert raw.shape[:2] == (2, 3)
    values = dequantize(raw.reshape(-1), type_name, (2, 3, 512))
    assert np.isfinite(values).all()
    assert 0.05 < float(np.sqrt(np.square(values, dtype=np.float64).mean())) < 0.2


def test_what_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no-such.*known are llama"):
        tiny("no-such")
    with pytest.raises(ConfigError, match="300 ids"):
        byte_vocabulary(200)
    with pytest.raises(ConfigError, match="50 merges need 309 ids, not 308"):
        byte_vocabulary(308, [f"a {chr(97 + i // 10)}{i}" for i in range(50)])
    with pytest.raises(ModelError, match="Q4_K blocks of 256"):
        random_tensor("Q4_K", (4, 64), 1.0, np.random.default_rng(0))
    with pytest.raises(ModelError, match="no tensor type 'Q99'"):
        random_tensor("Q99", (4, 64), 1.0, np.random.default_rng(0))
    with pytest.raises(ModelError, match="I32 are of no use"):
        random_tensor("I32", (4, 64), 1.0, np.random.default_rng(0))


def test_the_byte_vocabulary() -> None:
    symbols = byte_symbols()
    assert len(set(symbols)) == 256
    assert (symbols[ord("A")], symbols[ord(" ")], symbols[0], symbols[0xAD]) == ("A", "Ġ", "Ā", "Ń")
    vocabulary = byte_vocabulary(320)
    tokens = vocabulary["tokenizer.ggml.tokens"]
    assert len(tokens) == len(set(tokens)) == len(vocabulary["tokenizer.ggml.token_type"]) == 320
    for merge in vocabulary["tokenizer.ggml.merges"]:
        left, right = merge.split(" ")
        assert {left, right, left + right} <= set(tokens)
    assert tokens[vocabulary["tokenizer.ggml.eos_token_id"]] == "<|im_end|>"
