"""Handles of ggml tensors as models see them: row-major shapes over ggml's reversed ones."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tensorsharp_backend_ggml.binding import F32, I32

Shape = tuple[int, ...]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A ggml tensor.

    shape: row-major, at most 4 axes. dtype: what it stands for ("f32" for a quantised weight). type: ggml's own type.
    strides: bytes per axis of a view that is not contiguous, else None. sparse: may hold -1.
    array: the host array behind an input, which is rewritten before every replay; None for anything else.
    """

    ptr: int
    shape: Shape
    dtype: Literal["f32", "i32"] = "f32"
    type: int = F32
    strides: Shape | None = None
    sparse: bool = False
    array: npt.NDArray[Any] | None = None


def reversed_shape(shape: Shape) -> tuple[int, int, int, int]:
    """ggml's `ne` of a row-major shape."""
    ne = [*reversed(shape), 1, 1, 1, 1][:4]
    return ne[0], ne[1], ne[2], ne[3]


def dense_strides(shape: Shape, itemsize: int = 4) -> Shape:
    """Bytes per axis of a contiguous array."""
    return tuple(itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))


def reversed_strides(shape: Shape, strides: Shape) -> tuple[int, int, int, int]:
    """ggml's `nb` of row-major strides; the axes that ggml adds span the whole tensor."""
    whole = shape[0] * strides[0]
    nb = [*reversed(strides), whole, whole, whole, whole][:4]
    return nb[0], nb[1], nb[2], nb[3]


def zeros(shape: Shape, dtype: npt.DTypeLike, alignment: int = 64) -> npt.NDArray[Any]:
    """Zeroed host memory that starts on a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.zeros(size + alignment, np.uint8)
    skip = -raw.ctypes.data % alignment
    return raw[skip : skip + size].view(dtype).reshape(shape)


def host_view(address: int, shape: Shape, dtype: npt.DTypeLike, strides: Shape | None = None) -> npt.NDArray[Any]:
    """A numpy view of memory at `address`; the caller keeps that memory alive."""
    item = np.dtype(dtype)
    span = dense_strides(shape, item.itemsize) if strides is None else strides
    extent = item.itemsize + sum((n - 1) * s for n, s in zip(shape, span, strict=True)) if math.prod(shape) else 0
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * extent).from_address(address)) if extent else np.zeros(0, np.uint8)
    return np.ndarray(shape, item, raw, 0, span)


def numpy_type(node: Node) -> type[np.generic]:
    """numpy type of a tensor that graphs compute with."""
    return np.int32 if node.type == I32 else np.float32
