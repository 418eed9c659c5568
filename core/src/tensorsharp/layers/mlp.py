"""The gated feed-forward block."""

from __future__ import annotations

from tensorsharp.inputs import Tensor
from tensorsharp.layers.linear import project
from tensorsharp.layers.tensors import Expected
from tensorsharp.ops import GatedKind, Ops


def gated_mlp_tensors(layer: int, width: int, hidden: int) -> list[Expected]:
    """The tensors that `gated_mlp` reads; biases are optional."""
    b = f"blk.{layer}."
    found = []
    for name, shape in (("ffn_gate", (hidden, width)), ("ffn_up", (hidden, width)), ("ffn_down", (width, hidden))):
        found.append(Expected(f"{b}{name}.weight", shape))
        found.append(Expected(f"{b}{name}.bias", shape[:1], optional=True))
    return found


def gated_mlp(ops: Ops, x: Tensor, layer: int, kind: GatedKind) -> Tensor:
    """x [R, width] -> down(kind(gate x) * up x)."""
    b = f"blk.{layer}."
    return project(ops, ops.glu(project(ops, x, f"{b}ffn_gate"), project(ops, x, f"{b}ffn_up"), kind), f"{b}ffn_down")
