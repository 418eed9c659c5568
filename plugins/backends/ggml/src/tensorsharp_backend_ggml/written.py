"""What every operation needs while a graph is written: handles, conversions, native kernels or the host instead."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from tensorsharp.errors import ModelError
from tensorsharp.inputs import Tensor
from tensorsharp_backend_ggml.binding import F32
from tensorsharp_backend_ggml.builder import Builder
from tensorsharp_backend_ggml.native import Kernels, Name
from tensorsharp_backend_ggml.tensors import Node, Shape

HEAVY = frozenset({"attend", "linear", "experts", "dots", "scan"})
"""Kernels whose work is not seen in the size of what they read from the graph."""


class Written:
    """Base of the operations: one graph's builder, the model's weights, and our kernels, None where they are absent."""

    def __init__(self, builder: Builder, weights: Mapping[str, Node], kernels: Kernels | None) -> None:
        self.b = builder
        self.weights = weights
        self.kernels = kernels
        self._widened: dict[int, Node] = {}
        self._forms: dict[tuple[int, int | str], Node] = {}

    def kernel(
        self,
        name: Name,
        descriptor: ctypes.Structure,
        args: Sequence[Node],
        shape: Shape,
        dtype: Literal["f32", "i32"] = "f32",
        type_id: int | None = None,
    ) -> Node:
        """A node of our kernel `name`; its arguments are made contiguous, except those of rope, which takes any."""
        assert self.kernels is not None
        read = list(args) if name == "rope" else [self.b.contiguous(a) for a in args]
        work = None if name in HEAVY else math.prod(shape) + sum(math.prod(a.shape) for a in read)
        return self.b.native(self.kernels.pointer(name), descriptor, read, shape, dtype, type_id, work)

    def f32(self, x: Node) -> Node:
        """A weight of another type as float32, dequantised in the graph; anything else as it is."""
        if x.dtype == "i32" or x.type == F32:
            return x
        if x.ptr not in self._widened:
            self._widened[x.ptr] = self.b.op("cast", x, F32, shape=x.shape)
        return self._widened[x.ptr]

    def regroup(self, x: Node, shape: Shape) -> Node:
        """The same numbers in another shape; a view where the memory allows it."""
        if shape == x.shape:
            return x
        if x.strides is not None:
            row, inner = x.strides[0], math.prod(shape[1:])
            packed = all(x.strides[i] == 4 * math.prod(x.shape[i + 1 :]) for i in range(1, len(x.shape)))
            if packed and shape[0] == x.shape[0] and inner == math.prod(x.shape[1:]):
                strides = (row, *(4 * math.prod(shape[i + 1 :]) for i in range(1, len(shape))))
                return self.b.view(x, shape, strides)
            x = self.b.contiguous(x)
        ne = [*reversed(shape), 1, 1, 1, 1][:4]
        node = self.b.op("reshape_4d", x, *ne, shape=shape, dtype=x.dtype, sparse=x.sparse)
        return Node(node.ptr, shape, x.dtype, x.type, sparse=x.sparse)


def node(x: Tensor) -> Node:
    """The handle of a tensor. TypeError if another backend made it."""
    if not isinstance(x, Node):
        raise TypeError(f"a {type(x).__name__} is not a tensor of the ggml backend")
    return x


def require(ok: bool, operation: str, *shapes: Shape) -> None:
    """ModelError where a model hands an operation shapes that do not fit: ggml would end the process."""
    if not ok:
        raise ModelError(f"the model hands `{operation}` shapes that do not fit: {', '.join(str(list(s)) for s in shapes)}.")
