"""A linear projection named like the file names it."""

from __future__ import annotations

from tensorsharp.inputs import Tensor
from tensorsharp.ops import Ops


def project(ops: Ops, x: Tensor, name: str) -> Tensor:
    """x [..., I] by `name.weight` [O, I], plus `name.bias` where the file has one -> [..., O]."""
    bias = ops.weight(f"{name}.bias") if ops.has(f"{name}.bias") else None
    return ops.linear(x, ops.weight(f"{name}.weight"), bias)


def head(ops: Ops, x: Tensor) -> Tensor:
    """Logits of x [W, width]: the output matrix, or the embedding where the file ties them."""
    if ops.has("output.weight"):
        return project(ops, x, "output")
    return ops.linear(x, ops.weight("token_embd.weight"))
