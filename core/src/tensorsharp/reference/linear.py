"""Products with weights, one dot product for each output element."""

from __future__ import annotations

import numpy as np

from tensorsharp.protocols.batch import F32, I32
from tensorsharp.reference.arrays import dots


def linear(x: F32, weight: F32, bias: F32 | None = None, *, transposed: bool = False) -> F32:
    """[..., I] by [O, I] -> [..., O]; [R, G, I] by [G, O, I] -> [R, G, O]; transposed: [..., O] by [O, I] -> [..., I]."""
    matrix = np.ascontiguousarray(np.swapaxes(weight, -1, -2)) if transposed else weight
    y = dots(x[..., None, :], matrix)
    return y if bias is None else y + bias


def expert_linear(x: F32, weight: F32, index: I32, bias: F32 | None = None) -> F32:
    """[R, I] or [R, K, I] by [E, O, I], int [R, K] -> [R, K, O]: weight[index[r, k]] by x, plus bias[index[r, k]].

    Index -1 gives zeros.
    """
    rows, k = index.shape
    out = np.zeros((rows, k, weight.shape[1]), np.float32)
    for r, j in np.ndindex(rows, k):
        expert = index[r, j]
        if expert >= 0:
            out[r, j] = linear(x[r] if x.ndim == 2 else x[r, j], weight[expert], None if bias is None else bias[expert])
    return out
