"""Writes small GGUF files with random weights: real files of real architectures that load in milliseconds.

Keys and tensor names are those that llama.cpp requires; every architecture here was loaded and decoded with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tensorsharp.errors import ConfigError
from tensorsharp.testing.blocks import random_tensor
from tensorsharp.testing.ggufs import gguf_file
from tensorsharp.testing.tinyvocab import MERGES, byte_vocabulary
from tensorsharp.weights.ggml_types import GGML_TYPES_BY_NAME

__all__ = ["ARCHITECTURES", "Tiny", "tiny", "write_tiny"]


@dataclass(frozen=True, slots=True)
class Tiny:
    """One checkpoint. Equal values give equal files.

    weight_type: of every matrix, a name like "F32" or "Q4_K"; norms and biases are F32. window: of sliding layers.
    tied: no output matrix of its own. rope_freqs: per-frequency factors. experts: routed feed-forward blocks with so many
    experts, two for a row; 0 for dense ones. tokenizer: none (ids only) or a byte-level
    BPE vocabulary, which needs 300 ids or more. merges: of that vocabulary, in order of rank. chat_template: with a vocabulary.
    pooling: the number that makes it a model for embeddings (1 mean, 2 first, 3 last row).
    """

    architecture: str = "llama"
    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    hidden: int = 96
    vocab_size: int = 64
    context: int = 256
    window: int = 8
    weight_type: str = "F32"
    tied: bool = False
    rope_freqs: bool = False
    experts: int = 0
    tokenizer: Literal["none", "bytes"] = "none"
    merges: tuple[str, ...] = MERGES
    chat_template: str | None = None
    pooling: int | None = None
    seed: int = 0


Keys = dict[str, Any]
"""Key without the architecture's prefix -> int, float, bool, str, or list."""


class _Draft:
    """Keys and tensors of a file in the making."""

    def __init__(self, t: Tiny) -> None:
        self.t = t
        self.keys: Keys = {}
        self.matrices: dict[str, tuple[int, ...]] = {}
        self.vectors: dict[str, npt.NDArray[np.float32]] = {}
        self.rng = np.random.default_rng((t.seed, len(t.architecture)))

    def norm(self, name: str, width: int) -> None:
        """Values around 1."""
        self.vectors[f"{name}.weight"] = (1 + 0.1 * self.rng.standard_normal(width)).astype(np.float32)

    def bias(self, name: str, width: int) -> None:
        self.vectors[f"{name}.bias"] = (0.1 * self.rng.standard_normal(width)).astype(np.float32)

    def matrix(self, name: str, out: int, inputs: int) -> None:
        self.matrices[f"{name}.weight"] = (out, inputs)


def _common(d: _Draft) -> None:
    """What every dense decoder here has."""
    t = d.t
    q, kv = t.heads * t.head_dim, t.kv_heads * t.head_dim
    d.keys |= {
        "context_length": t.context,
        "embedding_length": t.width,
        "block_count": t.layers,
        "vocab_size": t.vocab_size,
        "feed_forward_length": t.hidden,
        "attention.head_count": t.heads,
        "attention.head_count_kv": t.kv_heads,
        "attention.key_length": t.head_dim,
        "attention.value_length": t.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": t.head_dim,
        "rope.freq_base": 10000.0,
    }
    if t.experts:
        d.keys |= {"expert_count": t.experts, "expert_used_count": 2}
    if t.pooling is not None:
        d.keys["pooling_type"] = t.pooling
    d.matrix("token_embd", t.vocab_size, t.width)
    d.norm("output_norm", t.width)
    if not t.tied:
        d.matrix("output", t.vocab_size, t.width)
    if t.rope_freqs:
        d.vectors["rope_freqs.weight"] = np.linspace(1, 8, t.head_dim // 2, dtype=np.float32)
    for i in range(t.layers):
        b = f"blk.{i}."
        d.norm(f"{b}attn_norm", t.width)
        d.norm(f"{b}ffn_norm", t.width)
        for name, out, inputs in (("q", q, t.width), ("k", kv, t.width), ("v", kv, t.width), ("output", t.width, q)):
            d.matrix(f"{b}attn_{name}", out, inputs)
        for name, out, inputs in (("gate", t.hidden, t.width), ("up", t.hidden, t.width), ("down", t.width, t.hidden)):
            if t.experts:
                d.matrices[f"{b}ffn_{name}_exps.weight"] = (t.experts, out, inputs)
            else:
                d.matrix(f"{b}ffn_{name}", out, inputs)
        if t.experts:
            d.matrix(f"{b}ffn_gate_inp", t.experts, t.width)


def _head_norms(d: _Draft) -> None:
    for i in range(d.t.layers):
        d.norm(f"blk.{i}.attn_q_norm", d.t.head_dim)
        d.norm(f"blk.{i}.attn_k_norm", d.t.head_dim)


def _mistral3(d: _Draft) -> None:
    """YaRN over a quarter of the context, and a query temperature that grows with the position."""
    d.keys |= {
        "attention.temperature_scale": 0.1,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": d.t.context // 4,
        "rope.scaling.yarn_beta_fast": 32.0,
        "rope.scaling.yarn_beta_slow": 1.0,
        "rope.scaling.yarn_log_multiplier": 1.0,
    }


def _qwen2(d: _Draft) -> None:
    for i in range(d.t.layers):
        d.bias(f"blk.{i}.attn_q", d.t.heads * d.t.head_dim)
        d.bias(f"blk.{i}.attn_k", d.t.kv_heads * d.t.head_dim)
        d.bias(f"blk.{i}.attn_v", d.t.kv_heads * d.t.head_dim)


def _gemma3(d: _Draft) -> None:
    """Sliding layers except every sixth, two rotary bases, norms after each half of a block, capped logits."""
    _head_norms(d)
    d.keys |= {
        "attention.sliding_window": d.t.window,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": 1e6,
        "rope.freq_base_swa": 10000.0,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
        "final_logit_softcapping": 30.0,
    }
    for i in range(d.t.layers):
        d.norm(f"blk.{i}.post_attention_norm", d.t.width)
        d.norm(f"blk.{i}.post_ffw_norm", d.t.width)


@dataclass(frozen=True, slots=True)
class _Recipe:
    """What an architecture adds to the common part, and the fields of :class:`Tiny` in which it differs."""

    finish: Callable[[_Draft], None]
    fields: Mapping[str, Any]


_RECIPES: Mapping[str, _Recipe] = {
    "llama": _Recipe(lambda d: None, {}),
    "mistral3": _Recipe(_mistral3, {}),
    "qwen2": _Recipe(_qwen2, {"tied": True}),
    "qwen3": _Recipe(_head_norms, {"tied": True}),
    "smollm3": _Recipe(lambda d: None, {"layers": 4, "tied": True}),
    "gemma3": _Recipe(_gemma3, {"layers": 7, "tied": True}),
}
ARCHITECTURES = tuple(_RECIPES)


def tiny(architecture: str, **fields: Any) -> Tiny:
    """A checkpoint of that architecture, large enough to exceed its windows and to have a layer of every kind.

    A weight type with blocks of 256 widens the matrices to what it needs. ConfigError for an unknown architecture.
    """
    if architecture not in _RECIPES:
        raise ConfigError(f"there is no tiny checkpoint of {architecture!r}; known are {', '.join(ARCHITECTURES)}.")
    kind = GGML_TYPES_BY_NAME.get(fields.get("weight_type", "F32"))
    wide = {"width": 256, "heads": 4, "head_dim": 64, "hidden": 256} if kind is not None and kind.block_size > 32 else {}
    words = {"vocab_size": 320} if fields.get("tokenizer") == "bytes" else {}
    return replace(Tiny(architecture), **{**_RECIPES[architecture].fields, **wide, **words, **fields})


def write_tiny(path: Path, t: Tiny) -> Path:
    """Write the checkpoint and return its path. Needs the package gguf; the same `t` gives the same bytes."""
    import gguf

    draft = _Draft(t)
    _common(draft)
    _RECIPES[t.architecture].finish(draft)
    keys = {f"{t.architecture}.{key}": value for key, value in draft.keys.items()} | _vocabulary(t)
    kind = gguf.GGMLQuantizationType[t.weight_type]
    with gguf_file(path, t.architecture, keys) as writer:
        for name, vector in draft.vectors.items():
            writer.add_tensor(name, vector)
        for name, shape in draft.matrices.items():
            scale = 1.0 if name == "token_embd.weight" else 1 / math.sqrt(shape[-1])
            raw = random_tensor(t.weight_type, shape, scale, draft.rng)
            plain = {"F32": np.float32, "F16": np.float16}.get(t.weight_type)
            writer.add_tensor(name, raw if plain is None else raw.view(plain), raw_dtype=None if plain else kind)
    return path


def _vocabulary(t: Tiny) -> Keys:
    if t.tokenizer == "none":
        return {"tokenizer.ggml.model": "none"}
    template = {} if t.chat_template is None else {"tokenizer.chat_template": t.chat_template}
    return byte_vocabulary(t.vocab_size, t.merges) | template
