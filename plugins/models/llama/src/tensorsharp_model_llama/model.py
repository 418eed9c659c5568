"""Llama and the architectures that differ from it in a detail.

A decoder block: h += attention(rms(h)); h += mlp(rms(h)). What differs, by `general.architecture`:

llama     pairs rotated as (2i, 2i+1); optional frequency factors (Llama 3) and routed experts (Mixtral)
mistral3  as llama; YaRN; queries scaled by 1 + beta * ln(1 + floor(p / original context))
qwen2     pairs rotated as (i, i+d/2); biases on q, k, v
qwen3     as qwen2 without the biases; RMS norm of every query and key head before rotation
smollm3   as llama; every fourth layer has no positions

Sources: the architectures' configurations in `transformers`, and the GGUF keys and tensor names of llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from tensorsharp.errors import ModelError
from tensorsharp.inputs import ModelBatch, Rope, Tensor
from tensorsharp.layers.attention import AttentionShape, attention, attention_state, attention_tensors, read_attention
from tensorsharp.layers.experts import expert_tensors, experts, route
from tensorsharp.layers.hyperparameters import Hyperparameters
from tensorsharp.layers.linear import head
from tensorsharp.layers.mlp import gated_mlp, gated_mlp_tensors
from tensorsharp.layers.rotary import frequency_factors, rope_from_metadata
from tensorsharp.layers.tensors import Expected, check_tensors, vocabulary_size
from tensorsharp.ops import OUTPUT, Ops
from tensorsharp.protocols.batch import F32, I32
from tensorsharp.protocols.file import ModelFile
from tensorsharp.protocols.layout import Format, Layout
from tensorsharp_model_llama.conversations import STYLES


@dataclass(frozen=True, slots=True)
class Variant:
    """In what an architecture differs. no_rope_every n: layers n-1, 2n-1, ... have no positions."""

    style: Literal["norm", "neox"]
    head_norms: bool = False
    no_rope_every: int = 0


VARIANTS = {
    "llama": Variant("norm"),
    "mistral3": Variant("norm"),
    "qwen2": Variant("neox"),
    "qwen3": Variant("neox", head_norms=True),
    "smollm3": Variant("norm", no_rope_every=4),
}


@dataclass(frozen=True, slots=True)
class Config:
    """The file's numbers. experts 0: dense. temperature: (beta, original context) of mistral3's query scale."""

    layers: int
    width: int
    context: int
    hidden: tuple[int, ...]
    experts: int
    experts_used: int
    eps: float
    attention: AttentionShape
    rope: Rope
    temperature: tuple[float, int] | None


def read_config(file: ModelFile, variant: Variant) -> Config:
    h = Hyperparameters(file)
    layers, width, context = h.integer("block_count"), h.integer("embedding_length"), h.integer("context_length")
    shape = read_attention(h, width)
    shape = replace(shape, scale=h.number("attention.scale", 0.0) or shape.scale)
    key_dim = shape.key_dim
    dims = h.integer("rope.dimension_count", key_dim, least=2)
    if dims > key_dim or dims % 2:
        raise ModelError(
            f"{file.path}: key {h.prefix}.rope.dimension_count: expected an even number up to {key_dim}, found {dims}."
        )
    beta = h.number("attention.temperature_scale", 0.0)
    return Config(
        layers=layers,
        width=width,
        context=context,
        hidden=h.per_layer("feed_forward_length", layers),
        experts=h.integer("expert_count", 0, least=0),
        experts_used=h.integer("expert_used_count", 0, least=0),
        eps=shape.eps,
        attention=shape,
        rope=rope_from_metadata(h, dims, variant.style, context, factors=frequency_factors(file, dims)),
        temperature=(beta, h.integer("rope.scaling.original_context_length")) if beta else None,
    )


class Llama:
    """See the module. Implements `IBatchedPagedModel`."""

    def __init__(self, architecture: str, config: Config, vocab_size: int, weights: frozenset[str]) -> None:
        self.architecture = architecture
        self.config = config
        self.variant = VARIANTS[architecture]
        self.chat = STYLES[architecture]
        self.vocab_size = vocab_size
        self.context_length = config.context
        self.layers = config.layers
        self.width = config.width
        self._weights = weights

    @classmethod
    def from_file(cls, file: ModelFile) -> Self:
        if file.architecture not in VARIANTS:
            raise ModelError(f"{file.path}: architecture {file.architecture!r} is not one of {', '.join(VARIANTS)}.")
        variant = VARIANTS[file.architecture]
        config = read_config(file, variant)
        vocab_size = vocabulary_size(file)
        return cls(file.architecture, config, vocab_size, check_tensors(file, _tensors(config, variant, vocab_size)))

    def layout(self, kv_format: Format) -> Layout:
        return {
            name: state
            for layer in range(self.layers)
            for name, state in attention_state(layer, self.config.attention, kv_format).items()
        }

    def weights(self) -> frozenset[str]:
        return self._weights

    def forward(self, ops: Ops, batch: ModelBatch) -> Tensor:
        c = self.config
        h = ops.take(ops.weight("token_embd.weight"), batch.tokens)
        q_scale = None if c.temperature is None else batch.host("query_temperature", self._temperature, width=(1, 1), dtype="f32")
        for layer in range(c.layers):
            ops.tap(f"layer.{layer}", h)
            x = ops.rms_norm(h, ops.weight(f"blk.{layer}.attn_norm.weight"), c.eps)
            rope = None if self._no_positions(layer) else c.rope
            x = attention(ops, batch, x, layer, c.attention, rope=rope, norms=self.variant.head_norms, q_scale=q_scale)
            h = ops.add(h, x)
            x = ops.rms_norm(h, ops.weight(f"blk.{layer}.ffn_norm.weight"), c.eps)
            h = ops.add(h, self._feed_forward(ops, x, layer))
        ops.tap(f"layer.{c.layers}", h)
        h = ops.rms_norm(ops.take(h, batch.wanted), ops.weight("output_norm.weight"), c.eps)
        ops.tap(OUTPUT, h)
        return head(ops, h)

    def _feed_forward(self, ops: Ops, x: Tensor, layer: int) -> Tensor:
        if self.config.experts == 0:
            return gated_mlp(ops, x, layer, "silu")
        scores = ops.softmax(ops.linear(x, ops.weight(f"blk.{layer}.ffn_gate_inp.weight")))
        index, weights = route(ops, scores, self.config.experts_used, normalise=True)
        return experts(ops, x, layer, index, weights, "silu")

    def _no_positions(self, layer: int) -> bool:
        every = self.variant.no_rope_every
        return every > 0 and (layer + 1) % every == 0

    def _temperature(self, tokens: I32, previous: I32, pos: I32) -> F32:
        """[R, 1, 1] query scale of a position (Ministral 3: 1 + beta * ln(1 + floor(p / original context)))."""
        assert self.config.temperature is not None
        beta, original = self.config.temperature
        scale = 1.0 + beta * np.log1p(np.floor(pos.astype(np.float64) / original))
        return scale.astype(np.float32)[:, None, None]


def _tensors(config: Config, variant: Variant, vocab_size: int) -> list[Expected]:
    width = config.width
    found = [
        Expected("token_embd.weight", (vocab_size, width)),
        Expected("output_norm.weight", (width,)),
        Expected("output.weight", (vocab_size, width), optional=True),
        Expected("output.bias", (vocab_size,), optional=True),
    ]
    for layer in range(config.layers):
        found += [Expected(f"blk.{layer}.attn_norm.weight", (width,)), Expected(f"blk.{layer}.ffn_norm.weight", (width,))]
        found += attention_tensors(layer, config.attention, norms=variant.head_norms)
        if config.experts:
            found += expert_tensors(layer, width, config.hidden[layer], config.experts)
        else:
            found += gated_mlp_tensors(layer, width, config.hidden[layer])
    return found
