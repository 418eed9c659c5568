"""Attention with grouped key heads over paged stores: project, normalise, rotate, store, attend, project back."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorsharp.errors import ModelError
from tensorsharp.inputs import ModelBatch, Rope, Tensor
from tensorsharp.layers.hyperparameters import Hyperparameters
from tensorsharp.layers.linear import project
from tensorsharp.layers.tensors import Expected
from tensorsharp.ops import Ops, Source
from tensorsharp.protocols.layout import Format, Paged


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Sizes of one layer's attention. window: how many of the newest positions a row sees, None for all."""

    width: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    scale: float
    eps: float
    window: int | None = None
    softcap: float = 0.0


def read_attention(h: Hyperparameters, width: int) -> AttentionShape:
    """Heads, sizes, epsilon and the usual scale of a model whose layers are alike. ModelError if heads do not fit."""
    heads = h.integer("attention.head_count")
    kv_heads = h.integer("attention.head_count_kv", heads)
    if heads % kv_heads:
        raise ModelError(f"{h.file.path}: {heads} query heads cannot share {kv_heads} key heads; expected a divisor.")
    key_dim = h.integer("attention.key_length", width // heads)
    return AttentionShape(
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        key_dim=key_dim,
        value_dim=h.integer("attention.value_length", width // heads),
        scale=1.0 / math.sqrt(key_dim),
        eps=h.number("attention.layer_norm_rms_epsilon"),
    )


def attention_state(layer: int, shape: AttentionShape, kv_format: Format) -> dict[str, Paged]:
    """The paged stores of one layer."""
    return {
        f"k.{layer}": Paged(shape.kv_heads * shape.key_dim, kv_format, window=shape.window),
        f"v.{layer}": Paged(shape.kv_heads * shape.value_dim, kv_format, window=shape.window),
    }


def attention_tensors(layer: int, shape: AttentionShape, *, norms: bool = False) -> list[Expected]:
    """The tensors that `attention` reads; biases are optional, head norms required where `norms`."""
    b = f"blk.{layer}."
    q, k, v = shape.heads * shape.key_dim, shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim
    out = shape.heads * shape.value_dim
    found = [
        Expected(f"{b}attn_q.weight", (q, shape.width)),
        Expected(f"{b}attn_k.weight", (k, shape.width)),
        Expected(f"{b}attn_v.weight", (v, shape.width)),
        Expected(f"{b}attn_output.weight", (shape.width, out)),
        Expected(f"{b}attn_q.bias", (q,), optional=True),
        Expected(f"{b}attn_k.bias", (k,), optional=True),
        Expected(f"{b}attn_v.bias", (v,), optional=True),
        Expected(f"{b}attn_output.bias", (shape.width,), optional=True),
    ]
    if norms:
        found += [Expected(f"{b}attn_q_norm.weight", (shape.key_dim,)), Expected(f"{b}attn_k_norm.weight", (shape.key_dim,))]
    return found


def attention(
    ops: Ops,
    batch: ModelBatch,
    x: Tensor,
    layer: int,
    shape: AttentionShape,
    *,
    rope: Rope | None,
    norms: bool = False,
    q_scale: Tensor | None = None,
) -> Tensor:
    """x [R, width], already normalised -> [R, width].

    norms: RMS norm of every query and key head before rotation. rope None: no positions. q_scale [R, 1, 1] multiplies
    the queries.
    """
    b = f"blk.{layer}."
    q = ops.reshape(project(ops, x, f"{b}attn_q"), (-1, shape.heads, shape.key_dim))
    k = ops.reshape(project(ops, x, f"{b}attn_k"), (-1, shape.kv_heads, shape.key_dim))
    v = project(ops, x, f"{b}attn_v")
    if norms:
        q = ops.rms_norm(q, ops.weight(f"{b}attn_q_norm.weight"), shape.eps)
        k = ops.rms_norm(k, ops.weight(f"{b}attn_k_norm.weight"), shape.eps)
    if rope is not None:
        angles = batch.angles(rope)
        q, k = ops.rope(q, angles, rope), ops.rope(k, angles, rope)
    if q_scale is not None:
        q = ops.mul(q, q_scale)
    ops.store(f"k.{layer}", ops.reshape(k, (-1, shape.kv_heads * shape.key_dim)))
    ops.store(f"v.{layer}", v)
    source = Source(f"k.{layer}", batch.visible(shape.window), f"v.{layer}", shape.kv_heads)
    out = ops.attend(q, [source], shape.scale, softcap=shape.softcap)
    return project(ops, ops.reshape(out, (-1, shape.heads * shape.value_dim)), f"{b}attn_output")
