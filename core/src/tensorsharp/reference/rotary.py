"""Rotation of query and key heads by angles that were computed once, on the host, for every backend."""

from __future__ import annotations

import numpy as np

from tensorsharp.inputs import Rope
from tensorsharp.protocols.batch import F32


def rope(x: F32, angles: F32, table: Rope, *, inverse: bool = False) -> F32:
    """x [R, H, D], angles [R, d/2, 2] (cos, sin) -> [R, H, D] with pairs of elements offset .. offset+d-1 rotated.

    a' = a*c - b*s, b' = a*s + b*c; inverse uses -s. Pairs are (2i, 2i+1) for style norm, (i, i+d/2) for neox (Su et
    al., arXiv 2104.09864).
    """
    start, half = table.offset, table.dims // 2
    if table.style == "norm":
        first, second = slice(start, start + 2 * half, 2), slice(start + 1, start + 2 * half, 2)
    else:
        first, second = slice(start, start + half), slice(start + half, start + 2 * half)
    cos, sin = angles[:, None, :, 0], angles[:, None, :, 1]
    if inverse:
        sin = -sin
    a, b = x[..., first], x[..., second]
    out = np.array(x, np.float32)
    out[..., first] = a * cos - b * sin
    out[..., second] = a * sin + b * cos
    return out
