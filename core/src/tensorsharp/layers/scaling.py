"""Small compositions of arithmetic that several families use."""

from __future__ import annotations

from tensorsharp.inputs import Tensor
from tensorsharp.ops import Ops


def softcap(ops: Ops, x: Tensor, limit: float) -> Tensor:
    """limit * tanh(x / limit); x itself for limit 0."""
    if limit == 0.0:
        return x
    return ops.mul(ops.act(ops.mul(x, 1.0 / limit), "tanh"), limit)


def l2_norm(ops: Ops, x: Tensor, eps: float) -> Tensor:
    """x * rsqrt(sum x^2 + eps) over the last axis, as an RMS norm."""
    width = x.shape[-1]
    return ops.mul(ops.rms_norm(x, None, eps / width), float(width) ** -0.5)
