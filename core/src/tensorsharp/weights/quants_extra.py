"""Decoders for the types that the `gguf` package does not decode. Formulas: ggml-common.h and ggml-quants.c, ggml 0.25.

Each takes uint8 [blocks, block_bytes] and gives float32 [blocks, block_size].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def _plain(code: str) -> Callable[[Bytes], Floats]:
    dtype: np.dtype[Any] = np.dtype(code)
    return lambda blocks: blocks.view(dtype).astype(np.float32)


def _half(blocks: Bytes) -> Floats:
    """float32 [blocks, 1]: the half-precision scale in a block's first two bytes."""
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _q1_0(blocks: Bytes) -> Floats:
    """128 values: scale f16, 16 bytes of sign bits, lowest first; a set bit is +scale, a clear one -scale."""
    scale = _half(blocks)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return np.where(bits, scale, -scale)


def _q2_0(blocks: Bytes) -> Floats:
    """64 values: scale f16, 16 bytes of 2-bit codes, lowest first; codes 0 to 3 are -1 to 2 times the scale."""
    codes = (blocks[:, 2:, None] >> np.array([0, 2, 4, 6], dtype=np.uint8)) & 3
    return (codes.reshape(len(blocks), 64).astype(np.float32) - 1) * _half(blocks)


def _q8_1(blocks: Bytes) -> Floats:
    """32 values: scale f16, the sum of the values f16 (not needed here), 32 signed bytes."""
    return blocks[:, 4:].view(np.int8).astype(np.float32) * _half(blocks)


def _q8_k(blocks: Bytes) -> Floats:
    """256 values: scale f32, 256 signed bytes, sums over 16 values as i16 (not needed here)."""
    scale: Floats = np.ascontiguousarray(blocks[:, :4]).view("<f4")
    return blocks[:, 4:260].view(np.int8).astype(np.float32) * scale


EXTRA_DECODERS: Mapping[str, Callable[[Bytes], Floats]] = MappingProxyType(
    {
        "F32": _plain("<f4"),
        "F16": _plain("<f2"),
        "F64": _plain("<f8"),
        "I8": _plain("<i1"),
        "I16": _plain("<i2"),
        "I32": _plain("<i4"),
        "I64": _plain("<i8"),
        "Q1_0": _q1_0,
        "Q2_0": _q2_0,
        "Q8_1": _q8_1,
        "Q8_K": _q8_k,
    }
)
"""Type name -> decoder."""
