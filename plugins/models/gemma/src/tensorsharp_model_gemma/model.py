"""Gemma 3 (text), architecture `gemma3`.

Embeddings are scaled by sqrt(width). A block: h += rms(attention(rms(h))); h += rms(mlp(rms(h))), the MLP gated by GELU
(tanh form). Query and key heads are normalised before rotation. Layers slide over a window except every sixth (or as
the file's pattern says); sliding layers rotate with their own base and without scaling. Logits may be soft-capped.

Sources: Gemma 3 report (arXiv 2503.19786), the configuration in `transformers`, GGUF keys and names of llama.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from tensorsharp.errors import ModelError
from tensorsharp.inputs import ModelBatch, Rope, Tensor
from tensorsharp.layers.attention import AttentionShape, attention, attention_state, attention_tensors, read_attention
from tensorsharp.layers.hyperparameters import Hyperparameters
from tensorsharp.layers.linear import head
from tensorsharp.layers.mlp import gated_mlp, gated_mlp_tensors
from tensorsharp.layers.rotary import base_frequencies, rope_from_metadata
from tensorsharp.layers.scaling import softcap
from tensorsharp.layers.tensors import Expected, check_tensors, vocabulary_size
from tensorsharp.ops import OUTPUT, Ops
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format, Layout
from tensorsharp_model_gemma.conversations import STYLE

LARGEST = 62
"""Layers of the 27B model, whose attention scale is (width / heads)^-0.5 instead of key_dim^-0.5."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Attention and rotary table of one layer."""

    attention: AttentionShape
    rope: Rope


@dataclass(frozen=True, slots=True)
class Config:
    """The file's numbers."""

    width: int
    context: int
    hidden: tuple[int, ...]
    eps: float
    final_softcap: float
    layers: tuple[Layer, ...]


def read_config(file: ModelFile) -> Config:
    h = Hyperparameters(file)
    layers, width, context = h.integer("block_count"), h.integer("embedding_length"), h.integer("context_length")
    full = read_attention(h, width)
    key_dim = full.key_dim
    full = replace(full, value_dim=h.integer("attention.value_length", key_dim))
    if layers == LARGEST:
        full = replace(full, scale=1.0 / math.sqrt(width // full.heads))
    window = h.integer("attention.sliding_window", 0, least=0)
    sliding = h.flags("attention.sliding_window_pattern", layers, 6) if window else (False,) * layers
    far = Layer(full, rope_from_metadata(h, key_dim, "neox", context))
    near = Layer(
        replace(full, window=window or None),
        Rope(base_frequencies(key_dim, h.number("rope.freq_base_swa", 10000.0)), style="neox"),
    )
    return Config(
        width=width,
        context=context,
        hidden=h.per_layer("feed_forward_length", layers),
        eps=full.eps,
        final_softcap=h.number("final_logit_softcapping", 0.0),
        layers=tuple(near if slides else far for slides in sliding),
    )


class Gemma3:
    """See the module. Implements `IBatchedPagedModel`."""

    def __init__(self, config: Config, vocab_size: int, weights: frozenset[str]) -> None:
        self.architecture = "gemma3"
        self.chat = STYLE
        self.config = config
        self.vocab_size = vocab_size
        self.context_length = config.context
        self.layers = len(config.layers)
        self.width = config.width
        self._weights = weights

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        if file.architecture != "gemma3":
            raise ModelError(f"{file.path}: architecture {file.architecture!r} is not gemma3.")
        config = read_config(file)
        vocab_size = vocabulary_size(file)
        return cls(config, vocab_size, check_tensors(file, _tensors(config, vocab_size)))

    def layout(self, kv_format: Format) -> Layout:
        return {
            name: state
            for i, layer in enumerate(self.config.layers)
            for name, state in attention_state(i, layer.attention, kv_format).items()
        }

    def weights(self) -> frozenset[str]:
        return self._weights

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        c = self.config
        h = ops.mul(ops.take(ops.weight("token_embd.weight"), batch.tokens), math.sqrt(c.width))
        for i, layer in enumerate(c.layers):
            ops.tap(f"layer.{i}", h)
            x = ops.rms_norm(h, ops.weight(f"blk.{i}.attn_norm.weight"), c.eps)
            x = attention(ops, batch, x, i, layer.attention, rope=layer.rope, norms=True)
            h = ops.add(h, ops.rms_norm(x, ops.weight(f"blk.{i}.post_attention_norm.weight"), c.eps))
            x = ops.rms_norm(h, ops.weight(f"blk.{i}.ffn_norm.weight"), c.eps)
            x = gated_mlp(ops, x, i, "gelu_tanh")
            h = ops.add(h, ops.rms_norm(x, ops.weight(f"blk.{i}.post_ffw_norm.weight"), c.eps))
        ops.tap(f"layer.{self.layers}", h)
        h = ops.rms_norm(ops.take(h, batch.wanted), ops.weight("output_norm.weight"), c.eps)
        ops.tap(OUTPUT, h)
        return softcap(ops, head(ops, h), c.final_softcap)


def _tensors(config: Config, vocab_size: int) -> list[Expected]:
    width = config.width
    found = [
        Expected("token_embd.weight", (vocab_size, width)),
        Expected("output_norm.weight", (width,)),
        Expected("output.weight", (vocab_size, width), optional=True),
    ]
    for i, layer in enumerate(config.layers):
        for norm in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            found.append(Expected(f"blk.{i}.{norm}.weight", (width,)))
        found += attention_tensors(i, layer.attention, norms=True)
        found += gated_mlp_tensors(i, width, config.hidden[i])
    return found
