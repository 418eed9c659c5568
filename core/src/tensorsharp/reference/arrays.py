"""Reductions with a stated order, which every operation that sums is written in."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tensorsharp.protocols.batch import F32

Array = npt.NDArray[np.generic]
PIECE = 8192
"""Longest dot product handed to the BLAS, which splits longer ones over threads: bits would follow their number."""


def dots(a: F32, b: F32) -> F32:
    """[..., I] and [..., I], broadcast -> [...]: one dot product for each result, float32.

    Every result is a product of its own, of two vectors of I elements, so its bits depend on I and on nothing around
    it: not on the number of rows, as they would with a matrix product. Pieces of 8,192 are added ascending.
    """
    total: F32 = np.vecdot(a[..., :PIECE], b[..., :PIECE])
    for start in range(PIECE, a.shape[-1], PIECE):
        total = total + np.vecdot(a[..., start : start + PIECE], b[..., start : start + PIECE])
    return total


def ascending_sum(terms: F32, axis: int) -> F32:
    """The sum along `axis`, one term after the other from the first, each addition rounded. The axis must not be empty."""
    total: F32 = np.add.accumulate(terms, axis=axis).take(-1, axis=axis)
    return total


def last_sum(x: F32) -> F32:
    """[..., N] -> [..., 1]: numpy's pairwise sum of the last axis, whose order depends on N alone."""
    total: F32 = np.add.reduce(np.ascontiguousarray(x), axis=-1, keepdims=True)
    return total
