"""Mixture of experts: choose experts for each row, run them, add them in the order of choice."""

from __future__ import annotations

from tensorsharp.inputs import Tensor
from tensorsharp.layers.tensors import Expected
from tensorsharp.ops import GatedKind, Ops

SMALLEST_SUM = 6.103515625e-5
"""Chosen weights are divided by their sum, never by less than this (the smallest normal float16)."""


def route(
    ops: Ops,
    scores: Tensor,
    k: int,
    *,
    bias: Tensor | None = None,
    normalise: bool = False,
    scale: float = 1.0,
    after_softmax: bool = False,
) -> tuple[Tensor, Tensor]:
    """scores [R, E] -> chosen experts int [R, k] and their weights [R, k].

    bias shifts the choice, not the weight. after_softmax: softmax over the chosen scores. normalise: weights sum to 1.
    """
    index = ops.top_k(scores if bias is None else ops.add(scores, bias), k)
    weights = ops.pick(scores, index)
    if after_softmax:
        weights = ops.softmax(weights)
    if normalise:
        weights = ops.div(weights, ops.clamp(ops.total(weights), SMALLEST_SUM, float("inf")))
    return index, weights if scale == 1.0 else ops.mul(weights, scale)


def expert_tensors(layer: int, width: int, hidden: int, experts: int) -> list[Expected]:
    """The tensors of a routed block: router and stacked experts."""
    b = f"blk.{layer}."
    return [
        Expected(f"{b}ffn_gate_inp.weight", (experts, width)),
        Expected(f"{b}ffn_gate_exps.weight", (experts, hidden, width)),
        Expected(f"{b}ffn_up_exps.weight", (experts, hidden, width)),
        Expected(f"{b}ffn_down_exps.weight", (experts, width, hidden)),
    ]


def experts(ops: Ops, x: Tensor, layer: int, index: Tensor, weights: Tensor, kind: GatedKind) -> Tensor:
    """x [R, width], index and weights [R, k] -> [R, width]: the weighted sum of the chosen experts, in order of choice."""
    b = f"blk.{layer}."
    gate = ops.expert_linear(x, ops.weight(f"{b}ffn_gate_exps.weight"), index)
    up = ops.expert_linear(x, ops.weight(f"{b}ffn_up_exps.weight"), index)
    down = ops.expert_linear(ops.glu(gate, up, kind), ops.weight(f"{b}ffn_down_exps.weight"), index)
    k, width = down.shape[-2], down.shape[-1]
    mixed = ops.mix(down, ops.reshape(weights, (-1, k, 1)))
    return ops.reshape(mixed, (-1, width))
