"""Soft caps, as several families put them on logits."""

from __future__ import annotations

from tensorsharp.inputs import Tensor
from tensorsharp.ops import Ops


def softcap(ops: Ops, x: Tensor, limit: float) -> Tensor:
    """limit * tanh(x / limit); x itself for limit 0."""
    if limit == 0.0:
        return x
    return ops.mul(ops.act(ops.mul(x, 1.0 / limit), "tanh"), limit)
